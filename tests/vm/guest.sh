#!/bin/sh
# First process of the test VM: a Debian 12 kernel with every controller on cgroup v2.
# Prints "vm: pass NAME" or "vm: fail NAME" per check; `cargo xtask vm` reads the console.
export PATH=/usr/bin:/bin:/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run /tmp /var/lib /etc/pintle
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
# Overlay's upper directory needs a file system with xattrs that is not the initramfs.
mount -t tmpfs -o size=1g lib /var/lib
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
modprobe -a MODULES 2>/tmp/modprobe || cat /tmp/modprobe
hostname vm
ip link set lo up
ip link add up0 type bridge && ip address add 198.18.0.1/24 dev up0 && ip link set up0 up
ip route add default via 198.18.0.254 dev up0

k() { kubectl --kubeconfig /etc/pintle/admin.kubeconfig "$@"; }
check() { # NAME COMMAND...: tried for up to 180 s
    name=$1; shift
    i=0
    while [ $i -lt 90 ]; do
        if "$@" >/tmp/out 2>&1; then echo "vm: pass $name"; return 0; fi
        i=$((i + 1)); sleep 2
    done
    echo "vm: fail $name"
    cat /tmp/out
    k get pods,events -A -o wide
    return 1
}
cgroup_of() { # POD: its cgroup directory
    uid=$(k get pod "$1" -o 'jsonpath={.metadata.uid}')
    find /sys/fs/cgroup -type d -name "*pod$uid*" | head -n 1
}

echo "vm: kernel $(uname -r), controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
if ! pintle up --node-name vm --config /vm/config.yaml --detach; then
    cat /var/lib/pintle/pintle.log
    echo "vm: fail up"
    poweroff -f
fi
echo "vm: pass up"
pintle image import /vm/nginx-1.27.tar /vm/busybox-1.36.tar

reachable() { wget -q -O- "http://$(k get service web-api -o 'jsonpath={.spec.clusterIP}')/" | grep nginx:1.27; }
k apply -f /vm/web.yaml
check web-reachable reachable
three_ready() { [ "$(k get deployment web-api -o 'jsonpath={.status.readyReplicas}')" = 3 ]; }
check web-three-ready three_ready
k delete -f /vm/web.yaml --wait=false

k apply -f /vm/limits.yaml
limits_condition() { ! k get node vm -o yaml | grep -q 'not on cgroup v2'; }
check limits-enforced-on-this-host limits_condition
oom_killed() {
    [ "$(k get pod memory-hog -o 'jsonpath={.status.containerStatuses[0].lastState.terminated.reason}')" = OOMKilled ] &&
        [ "$(k get pod memory-hog -o 'jsonpath={.status.containerStatuses[0].restartCount}')" -ge 1 ]
}
check memory-limit-oom-killed-and-restarted oom_killed
throttled() {
    dir=$(cgroup_of cpu-hog) && [ -n "$dir" ] &&
        find "$dir" -name cpu.stat -exec grep -h '^nr_throttled' {} + | grep -v ' 0$'
}
check cpu-limit-throttled throttled
bomb_stopped() {
    dir=$(cgroup_of fork-bomb) && [ -n "$dir" ] &&
        find "$dir" -name pids.events -exec grep -h '^max' {} + | grep -v ' 0$'
}
check fork-bomb-stopped-at-pids-max bomb_stopped
check node-still-answers k get nodes
k delete -f /vm/limits.yaml --wait=false --grace-period=1

clean() {
    pintle down && ! ls -d /sys/fs/cgroup/pintle-* 2>/dev/null && ! ls -d /sys/fs/bpf/pintle-* 2>/dev/null &&
        [ "$(ip -o link | grep -c veth)" = 0 ]
}
check down-leaves-nothing clean
echo "vm: done"
poweroff -f
