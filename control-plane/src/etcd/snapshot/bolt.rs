//! bbolt's file format, as much of it as a database needs that is written once, from front to back.
//!
//! Watches and changes nothing: rows come in, ascending; pages go out, ascending. A file is pages of
//! 4 KiB:
//!
//! ```text
//!   0 1    meta, twice: where the root and the free list are, how many pages there are, checksum
//!   2      free list, empty
//!   3      root: a leaf that names the buckets and their root pages
//!   4 ...  one b+tree per bucket: leaves, and each branch after its children
//! ```
//! The first pages speak of the last ones, so a file is written twice: once with nobody listening,
//! which gives the [`Layout`], then for real, [`Layout::head`] first. Memory: one page per level.
//!
//! A branch never has a single child, because bbolt panics when it deletes from one.

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// The first page after the root.
const FIRST: u64 = 4;
const ROOT: u64 = 3;
const FREE_LIST: u64 = 2;
/// Bytes before the elements of a page.
const PAGE_HEAD: usize = 16;
/// Bytes of an element, of a branch or of a leaf.
const ELEMENT: usize = 16;
/// Fewest children of a branch.
const FEWEST: usize = 2;
/// Longest key: even a branch of such keys has room for many.
pub(super) const LONGEST_KEY: usize = 128;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE: u16 = 0x10;
/// Flag of a leaf's element whose value is a bucket.
const BUCKET: u32 = 0x01;
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    buckets: Vec<(Vec<u8>, u64)>,
    pages: u64,
}

/// Writes the trees of buckets, one after the other, page by page.
pub(super) struct Trees<F> {
    emit: F,
    next: u64,
    buckets: Vec<(Vec<u8>, u64)>,
    leaf: Leaf,
    /// The open branch of each level above the leaves.
    branches: Vec<Branch>,
}

impl<E, F: FnMut(Vec<u8>) -> Result<(), E>> Trees<F> {
    /// `emit` gets every page after [`Layout::head`].
    pub(super) fn new(emit: F) -> Self {
        Self {
            emit,
            next: FIRST,
            buckets: Vec::new(),
            leaf: Leaf::default(),
            branches: Vec::new(),
        }
    }

    /// The next row of the bucket; its key is greater than the one before.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), E> {
        debug_assert!(key.len() <= LONGEST_KEY, "a key of {} bytes", key.len());
        if !self.leaf.has_room(key.len() + value.len()) {
            self.end_leaf()?;
        }
        self.leaf.push(key, value, 0);
        Ok(())
    }

    /// Ends the bucket; buckets come in the order of their names.
    pub(super) fn end_bucket(&mut self, name: &[u8]) -> Result<(), E> {
        let root = if self.branches.is_empty() {
            // All of it, and be it nothing.
            let page = std::mem::take(&mut self.leaf);
            self.write(|id| page.page(id))?
        } else {
            if !self.leaf.is_empty() {
                self.end_leaf()?;
            }
            self.end_branches()?
        };
        self.buckets.push((name.to_vec(), root));
        Ok(())
    }

    /// Everything was written.
    pub(super) fn finish(self) -> Layout {
        Layout {
            buckets: self.buckets,
            pages: self.next,
        }
    }

    fn end_leaf(&mut self) -> Result<(), E> {
        let leaf = std::mem::take(&mut self.leaf);
        let first = leaf.first_key().to_vec();
        let id = self.write(|id| leaf.page(id))?;
        self.add_child(0, first, id)
    }

    fn add_child(&mut self, level: usize, first: Vec<u8>, id: u64) -> Result<(), E> {
        if self.branches.len() == level {
            self.branches.push(Branch::default());
        }
        self.branches[level].children.push((first, id));
        // What follows must not be an only child.
        let fit = self.branches[level].fit();
        if self.branches[level].children.len() >= fit + FEWEST {
            self.write_branch(level, fit)?;
        }
        Ok(())
    }

    /// Writes the first children of an open branch as a page of their own.
    fn write_branch(&mut self, level: usize, count: usize) -> Result<(), E> {
        let rest = self.branches[level].children.split_off(count);
        let full = std::mem::replace(&mut self.branches[level].children, rest);
        let full = Branch { children: full };
        let id = self.write(|id| full.page(id))?;
        let first = full.children.into_iter().next();
        let first = first.map(|(key, _)| key).unwrap_or_default();
        self.add_child(level + 1, first, id)
    }

    /// Closes all levels; answers the root.
    fn end_branches(&mut self) -> Result<u64, E> {
        let mut level = 0;
        loop {
            let children = &self.branches[level].children;
            if let ([(_, only)], true) = (&children[..], level + 1 == self.branches.len()) {
                let root = *only;
                self.branches.clear();
                return Ok(root);
            }
            let (count, fit) = (children.len(), self.branches[level].fit());
            if fit < count {
                // One too many for a page: two go to the next.
                self.write_branch(level, fit.min(count - FEWEST))?;
            }
            let left = self.branches[level].children.len();
            self.write_branch(level, left)?;
            level += 1;
        }
    }

    fn write(&mut self, page: impl FnOnce(u64) -> Vec<u8>) -> Result<u64, E> {
        let id = self.next;
        let page = page(id);
        self.next += (page.len() / PAGE) as u64;
        (self.emit)(page)?;
        Ok(id)
    }
}

/// An open leaf.
#[derive(Default)]
struct Leaf {
    /// Lengths of key and value, and flags.
    elements: Vec<(u32, u32, u32)>,
    /// Keys and values.
    data: Vec<u8>,
}

impl Leaf {
    fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// A row that is larger than a page has pages of its own.
    fn has_room(&self, bytes: usize) -> bool {
        let used = PAGE_HEAD + self.elements.len() * ELEMENT + self.data.len();
        self.is_empty() || used + ELEMENT + bytes <= PAGE
    }

    fn push(&mut self, key: &[u8], value: &[u8], flags: u32) {
        self.elements
            .push((length(key.len()), length(value.len()), flags));
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    fn first_key(&self) -> &[u8] {
        let first = self.elements.first().map_or(0, |(key, _, _)| *key as usize);
        &self.data[..first]
    }

    fn page(&self, id: u64) -> Vec<u8> {
        let bytes = PAGE_HEAD + self.elements.len() * ELEMENT + self.data.len();
        let mut page = start_page(id, LEAF, self.elements.len(), bytes);
        let mut data = PAGE_HEAD + self.elements.len() * ELEMENT;
        for (key, value, flags) in &self.elements {
            // Counted from the element itself.
            let position = length(data - page.len());
            for number in [*flags, position, *key, *value] {
                page.extend_from_slice(&number.to_le_bytes());
            }
            data += (*key + *value) as usize;
        }
        page.extend_from_slice(&self.data);
        end_page(page)
    }
}

/// An open branch: the first key below each child, and its page.
#[derive(Default)]
struct Branch {
    children: Vec<(Vec<u8>, u64)>,
}

impl Branch {
    /// How many of the children a page takes.
    fn fit(&self) -> usize {
        let mut bytes = PAGE_HEAD;
        let fits = |(key, _): &&(Vec<u8>, u64)| {
            bytes += ELEMENT + key.len();
            bytes <= PAGE
        };
        self.children.iter().take_while(fits).count()
    }

    fn page(&self, id: u64) -> Vec<u8> {
        let mut page = start_page(id, BRANCH, self.children.len(), PAGE);
        let mut data = PAGE_HEAD + self.children.len() * ELEMENT;
        for (key, child) in &self.children {
            let position = length(data - page.len());
            page.extend_from_slice(&position.to_le_bytes());
            page.extend_from_slice(&length(key.len()).to_le_bytes());
            page.extend_from_slice(&child.to_le_bytes());
            data += key.len();
        }
        for (key, _) in &self.children {
            page.extend_from_slice(key);
        }
        end_page(page)
    }
}

impl Layout {
    /// Bytes of the whole file.
    pub(super) fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }

    /// The pages before the trees.
    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(PAGE * 4);
        // The newer of two valid metas counts; it is the second.
        head.extend(self.meta(0));
        head.extend(self.meta(1));
        head.extend(end_page(start_page(FREE_LIST, FREE, 0, PAGE)));
        let mut root = Leaf::default();
        for (name, page) in &self.buckets {
            // A bucket: its root, and a sequence number nobody uses.
            let mut bucket = [0; 16];
            bucket[..8].copy_from_slice(&page.to_le_bytes());
            root.push(name, &bucket, BUCKET);
        }
        head.extend(root.page(ROOT));
        head
    }

    fn meta(&self, id: u64) -> Vec<u8> {
        let mut page = start_page(id, META, 0, PAGE);
        for number in [MAGIC, VERSION, length(PAGE), 0] {
            page.extend_from_slice(&number.to_le_bytes());
        }
        // Root and its sequence, free list, pages, transaction.
        for number in [ROOT, 0, FREE_LIST, self.pages, id] {
            page.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = fnv1a(&page[PAGE_HEAD..]);
        page.extend_from_slice(&checksum.to_le_bytes());
        end_page(page)
    }
}

/// The head of a page for `bytes` bytes, itself counted.
fn start_page(id: u64, kind: u16, count: usize, bytes: usize) -> Vec<u8> {
    let pages = bytes.div_ceil(PAGE);
    let mut page = Vec::with_capacity(pages * PAGE);
    page.extend_from_slice(&id.to_le_bytes());
    page.extend_from_slice(&kind.to_le_bytes());
    // A page of elements of 16 bytes and more.
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    page.extend_from_slice(&count.to_le_bytes());
    page.extend_from_slice(&length(pages - 1).to_le_bytes());
    page
}

fn end_page(mut page: Vec<u8>) -> Vec<u8> {
    page.resize(page.len().next_multiple_of(PAGE), 0);
    page
}

/// A length within a row, which the store keeps far below this.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// FNV-1a with 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads files back, checking what bbolt would.
#[cfg(test)]
pub(in crate::etcd) mod reader {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    pub(in crate::etcd) type Bucket = BTreeMap<Vec<u8>, Vec<u8>>;

    /// The buckets of a file.
    pub(in crate::etcd) fn read(file: &[u8]) -> BTreeMap<String, Bucket> {
        assert_eq!(file.len() % PAGE, 0);
        let pages = (file.len() / PAGE) as u64;
        for id in [0, 1] {
            let meta = page(file, id);
            assert_eq!(short(meta, 8), META);
            assert_eq!((int(meta, 16), int(meta, 20)), (MAGIC, VERSION));
            assert_eq!(int(meta, 24) as usize, PAGE);
            assert_eq!((long(meta, 32), long(meta, 48)), (ROOT, FREE_LIST));
            assert_eq!((long(meta, 56), long(meta, 64)), (pages, id));
            assert_eq!(long(meta, 72), fnv1a(&meta[16..72]));
        }
        let free = page(file, FREE_LIST);
        assert_eq!((short(free, 8), short(free, 10)), (FREE, 0));
        let mut seen = BTreeSet::from([0, 1, FREE_LIST]);
        let mut root = Bucket::new();
        walk(file, ROOT, BUCKET, &mut root, &mut seen);
        let mut buckets = BTreeMap::new();
        for (name, value) in root {
            let mut rows = Bucket::new();
            walk(file, long(&value, 0), 0, &mut rows, &mut seen);
            buckets.insert(String::from_utf8(name).unwrap(), rows);
        }
        // No page is unreachable.
        assert!(seen.into_iter().eq(0..pages));
        buckets
    }

    /// Reads what is below a page; answers the first key.
    fn walk(
        file: &[u8],
        id: u64,
        flags: u32,
        rows: &mut Bucket,
        seen: &mut BTreeSet<u64>,
    ) -> Option<Vec<u8>> {
        let mut lowest = None;
        let page = page(file, id);
        assert_eq!(long(page, 0), id);
        let (kind, count) = (short(page, 8), usize::from(short(page, 10)));
        for overflow in 0..=u64::from(int(page, 12)) {
            assert!(seen.insert(id + overflow), "page {id} is reached twice");
        }
        if kind == BRANCH {
            assert!(count >= FEWEST, "branch {id} has {count} children");
        }
        for at in 0..count {
            let element = PAGE_HEAD + at * ELEMENT;
            if kind == BRANCH {
                let start = element + int(page, element) as usize;
                let key = &page[start..start + int(page, element + 4) as usize];
                assert!(start + key.len() <= PAGE);
                let first = walk(file, long(page, element + 8), flags, rows, seen);
                assert_eq!(first.unwrap(), key);
                lowest.get_or_insert_with(|| key.to_vec());
            } else {
                assert_eq!((kind, int(page, element)), (LEAF, flags));
                let start = element + int(page, element + 4) as usize;
                let middle = start + int(page, element + 8) as usize;
                let end = middle + int(page, element + 12) as usize;
                assert!(end <= PAGE * (1 + int(page, 12) as usize));
                let key = page[start..middle].to_vec();
                assert!(rows.last_key_value().is_none_or(|(last, _)| *last < key));
                lowest.get_or_insert_with(|| key.clone());
                rows.insert(key, page[middle..end].to_vec());
            }
        }
        lowest
    }

    fn page(file: &[u8], id: u64) -> &[u8] {
        &file[usize::try_from(id).unwrap() * PAGE..]
    }

    fn short(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn int(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::reader::{Bucket, read};
    use super::*;

    /// Writes buckets as a whole file, both times.
    fn write(buckets: &BTreeMap<String, Bucket>) -> Vec<u8> {
        let trees = |emit: &mut dyn FnMut(Vec<u8>) -> Result<(), Infallible>| {
            let mut trees = Trees::new(emit);
            for (name, rows) in buckets {
                for (key, value) in rows {
                    trees.put(key, value).unwrap();
                }
                trees.end_bucket(name.as_bytes()).unwrap();
            }
            trees.finish()
        };
        let layout = trees(&mut |_| Ok(()));
        let mut file = layout.head();
        let again = trees(&mut |page| {
            file.extend(page);
            Ok(())
        });
        assert_eq!(again, layout);
        assert_eq!(file.len() as u64, layout.bytes());
        file
    }

    fn numbered(count: usize, value: usize) -> Bucket {
        let row = |number: usize| (format!("{number:0>17}").into_bytes(), vec![b'x'; value]);
        (0..count).map(row).collect()
    }

    #[test]
    fn trees_of_every_height_read_back() {
        // 123 keys of 17 bytes are a branch; around it, and around its square.
        for count in [
            0, 1, 2, 3, 122, 123, 124, 125, 126, 246, 247, 248, 15_129, 15_130, 15_131,
        ] {
            let buckets = BTreeMap::from([
                ("empty".to_owned(), Bucket::new()),
                // One row per leaf.
                ("key".to_owned(), numbered(count, 4000)),
                ("small".to_owned(), numbered(count, 3)),
            ]);
            assert_eq!(read(&write(&buckets)), buckets, "{count} rows");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_is_read(
            rows in proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 1..LONGEST_KEY),
                (0_usize..9000, any::<u8>()),
                0..400,
            ),
            scale in 1_usize..200,
        ) {
            let value = |(length, byte): (usize, u8)| vec![byte; length / scale];
            let rows: Bucket = rows.into_iter().map(|(key, of)| (key, value(of))).collect();
            let buckets = BTreeMap::from([
                ("a".to_owned(), rows),
                ("b".to_owned(), Bucket::from([(vec![1], vec![2])])),
            ]);
            prop_assert_eq!(read(&write(&buckets)), buckets);
        }
    }
}
