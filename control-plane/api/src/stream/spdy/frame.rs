//! SPDY/3.1 frames: bytes to frames and back.
//!
//! Pure. Only what Kubernetes' clients send is understood; other control frames are skipped, as
//! the protocol wants it. See the SPDY Protocol, Draft 3.1, section 2.

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Longest control frame: a header block of a few names.
const MAX_CONTROL: usize = 64 * 1024;
/// Longest data frame; spdystream's are at most 32 KiB.
const MAX_DATA: usize = 1 << 20;
/// Longest header block after inflation.
const MAX_HEADERS: usize = 64 * 1024;

const FIN: u8 = 0x01;

/// Names and values of a header block, lowercase names.
pub(super) type Headers = Vec<(String, String)>;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Opens a stream.
    SynStream {
        id: u32,
        fin: bool,
        headers: Headers,
    },
    /// Accepts one.
    SynReply { id: u32, headers: Headers },
    /// Ends one abnormally.
    RstStream { id: u32, status: u32 },
    /// Asks for the same frame back.
    Ping { id: u32 },
    /// The sender opens no more streams.
    GoAway,
    /// Bytes of a stream.
    Data { id: u32, fin: bool, data: Bytes },
    /// Anything else.
    Other,
}

/// The peer does not speak SPDY/3.1.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Another version.
    #[error("SPDY version {0} is not 3")]
    Version(u16),
    /// Longer than anything sensible.
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    /// Shorter than its type allows.
    #[error("a frame of type {0} is too short")]
    Truncated(u16),
    /// The header block cannot be inflated or parsed.
    #[error("a header block is damaged")]
    Headers,
}

/// The dictionary both directions' zlib streams start from (section 2.6.10.1): length-prefixed
/// names, then text.
fn dictionary() -> Vec<u8> {
    const NAMES: &str = "options head post put delete trace accept accept-charset \
        accept-encoding accept-language accept-ranges age allow authorization cache-control \
        connection content-base content-encoding content-language content-length \
        content-location content-md5 content-range content-type date etag expect expires from \
        host if-match if-modified-since if-none-match if-range if-unmodified-since \
        last-modified location max-forwards pragma proxy-authenticate proxy-authorization range \
        referer retry-after server te trailer transfer-encoding upgrade user-agent vary via \
        warning www-authenticate method get status";
    const MORE_NAMES: [&str; 8] = [
        "200 OK",
        "version",
        "HTTP/1.1",
        "url",
        "public",
        "set-cookie",
        "keep-alive",
        "origin",
    ];
    const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414\
        415416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently\
        400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error\
        501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov \
        Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,\
        image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
        publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut dictionary = Vec::with_capacity(1423);
    for name in NAMES.split(' ').chain(MORE_NAMES) {
        put_text(&mut dictionary, name);
    }
    dictionary.extend_from_slice(TEXT.as_bytes());
    dictionary
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&length(text.len()).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Splits received bytes into frames.
pub(super) struct Decoder {
    buffer: BytesMut,
    inflate: Decompress,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            inflate: Decompress::new(true),
        }
    }

    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes come.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(&head) = self.buffer.first_chunk::<8>() else {
            return Ok(None);
        };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let second = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let flags = head[4];
        let length = usize::try_from(second & 0x00ff_ffff).unwrap_or(usize::MAX);
        let control = first >> 31 == 1;
        if length > if control { MAX_CONTROL } else { MAX_DATA } {
            return Err(FrameError::TooLong(length));
        }
        if self.buffer.len() < 8 + length {
            return Ok(None);
        }
        self.buffer.advance(8);
        let payload = self.buffer.split_to(length).freeze();
        let fin = flags & FIN != 0;
        if !control {
            return Ok(Some(Frame::Data {
                id: first,
                fin,
                data: payload,
            }));
        }
        let version = u16::from_be_bytes([head[0] & 0x7f, head[1]]);
        if version != 3 {
            return Err(FrameError::Version(version));
        }
        let kind = u16::from_be_bytes([head[2], head[3]]);
        self.control(kind, fin, payload).map(Some)
    }

    fn control(&mut self, kind: u16, fin: bool, mut payload: Bytes) -> Result<Frame, FrameError> {
        let needed = match kind {
            1 => 10,
            3 | 7 => 8,
            2 | 6 | 8 => 4,
            _ => 0,
        };
        if payload.len() < needed {
            return Err(FrameError::Truncated(kind));
        }
        Ok(match kind {
            1 => {
                let id = payload.get_u32() & 0x7fff_ffff;
                payload.advance(6);
                let headers = self.headers(&payload)?;
                Frame::SynStream { id, fin, headers }
            }
            2 => {
                let id = payload.get_u32() & 0x7fff_ffff;
                let headers = self.headers(&payload)?;
                Frame::SynReply { id, headers }
            }
            3 => Frame::RstStream {
                id: payload.get_u32() & 0x7fff_ffff,
                status: payload.get_u32(),
            },
            6 => Frame::Ping {
                id: payload.get_u32(),
            },
            7 => Frame::GoAway,
            8 => {
                // Its block is part of the one zlib stream: it has to be inflated all the same.
                payload.advance(4);
                self.headers(&payload)?;
                Frame::Other
            }
            _ => Frame::Other,
        })
    }

    fn headers(&mut self, block: &[u8]) -> Result<Headers, FrameError> {
        let mut inflated = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            if inflated.len() == inflated.capacity() {
                if inflated.len() >= MAX_HEADERS {
                    return Err(FrameError::Headers);
                }
                inflated.reserve(inflated.len());
            }
            let before = self.inflate.total_in();
            let result = self
                .inflate
                .decompress_vec(rest, &mut inflated, FlushDecompress::Sync);
            let taken = usize::try_from(self.inflate.total_in() - before).unwrap_or(usize::MAX);
            rest = rest.get(taken..).unwrap_or_default();
            match result {
                Ok(Status::Ok) if rest.is_empty() && inflated.len() < inflated.capacity() => break,
                Ok(Status::Ok) => {}
                Ok(Status::BufError) if rest.is_empty() => break,
                Ok(Status::BufError) if inflated.len() == inflated.capacity() => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    if self.inflate.set_dictionary(&dictionary()).is_err() {
                        return Err(FrameError::Headers);
                    }
                }
                _ => return Err(FrameError::Headers),
            }
        }
        parse_headers(&inflated).ok_or(FrameError::Headers)
    }
}

fn parse_headers(mut block: &[u8]) -> Option<Headers> {
    fn take_u32(block: &mut &[u8]) -> Option<u32> {
        let (head, rest) = block.split_first_chunk::<4>()?;
        *block = rest;
        Some(u32::from_be_bytes(*head))
    }
    fn take_text(block: &mut &[u8]) -> Option<String> {
        let length = usize::try_from(take_u32(block)?).ok()?;
        let (text, rest) = block.split_at_checked(length)?;
        *block = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
    let count = take_u32(&mut block)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = take_text(&mut block)?;
        let value = take_text(&mut block)?;
        headers.push((name, value));
    }
    Some(headers)
}

/// Turns frames into bytes.
pub(super) struct Encoder {
    deflate: Compress,
}

impl Encoder {
    pub(super) fn new() -> Self {
        let mut deflate = Compress::new(Compression::fast(), true);
        if let Err(error) = deflate.set_dictionary(&dictionary()) {
            // Only a stream already in use refuses a dictionary.
            tracing::error!(%error, "set the SPDY dictionary");
        }
        Self { deflate }
    }

    /// The bytes of a frame.
    pub(super) fn encode(&mut self, frame: &Frame) -> Bytes {
        match frame {
            Frame::SynStream { id, fin, headers } => {
                let mut payload = id.to_be_bytes().to_vec();
                payload.extend_from_slice(&[0; 6]);
                payload.extend_from_slice(&self.headers(headers));
                control(1, *fin, &payload)
            }
            Frame::SynReply { id, headers } => {
                let mut payload = id.to_be_bytes().to_vec();
                payload.extend_from_slice(&self.headers(headers));
                control(2, false, &payload)
            }
            Frame::RstStream { id, status } => {
                let payload = [id.to_be_bytes(), status.to_be_bytes()].concat();
                control(3, false, &payload)
            }
            Frame::Ping { id } => control(6, false, &id.to_be_bytes()),
            Frame::GoAway => control(7, false, &[0; 8]),
            Frame::Data { id, fin, data } => {
                let mut bytes = id.to_be_bytes().to_vec();
                let flags = if *fin { u32::from(FIN) << 24 } else { 0 };
                bytes.extend_from_slice(&(flags | length(data.len())).to_be_bytes());
                bytes.extend_from_slice(data);
                Bytes::from(bytes)
            }
            Frame::Other => Bytes::new(),
        }
    }

    fn headers(&mut self, headers: &Headers) -> Vec<u8> {
        let mut plain = length(headers.len()).to_be_bytes().to_vec();
        for (name, value) in headers {
            put_text(&mut plain, name);
            put_text(&mut plain, value);
        }
        let mut packed = Vec::with_capacity(plain.len() + 64);
        let before = self.deflate.total_in();
        loop {
            let taken = usize::try_from(self.deflate.total_in() - before).unwrap_or(usize::MAX);
            let rest = plain.get(taken..).unwrap_or_default();
            let result = self
                .deflate
                .compress_vec(rest, &mut packed, FlushCompress::Sync);
            let room = packed.len() < packed.capacity();
            if result.is_err() || (room && self.deflate.total_in() - before >= plain.len() as u64) {
                return packed;
            }
            packed.reserve(64);
        }
    }
}

fn control(kind: u16, fin: bool, payload: &[u8]) -> Bytes {
    let mut bytes = vec![0x80, 0x03];
    bytes.extend_from_slice(&kind.to_be_bytes());
    let flags = if fin { u32::from(FIN) << 24 } else { 0 };
    bytes.extend_from_slice(&(flags | length(payload.len())).to_be_bytes());
    bytes.extend_from_slice(payload);
    Bytes::from(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_the_specified_one() {
        let dictionary = dictionary();
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in &dictionary {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        // Its Adler-32, which zlib streams name it by.
        assert_eq!((dictionary.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn frames_survive_the_way_in_any_pieces() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let frames = [
            Frame::SynStream {
                id: 1,
                fin: false,
                headers: vec![header("streamtype", "stdin"), header("port", "80")],
            },
            Frame::SynReply {
                id: 1,
                headers: vec![],
            },
            Frame::SynStream {
                id: 3,
                fin: true,
                headers: vec![header("streamtype", &"x".repeat(5000))],
            },
            Frame::Data {
                id: 1,
                fin: true,
                data: Bytes::from_static(b"hello"),
            },
            Frame::Ping { id: 7 },
            Frame::RstStream { id: 3, status: 5 },
            Frame::GoAway,
        ];
        let mut encoder = Encoder::new();
        let bytes: Vec<u8> = frames.iter().flat_map(|f| encoder.encode(f)).collect();
        for size in [1, 7, bytes.len()] {
            let mut decoder = Decoder::new();
            let mut decoded = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    decoded.push(frame);
                }
            }
            assert_eq!(decoded, frames, "in pieces of {size}");
        }
    }

    #[test]
    fn another_version_is_refused() {
        let mut decoder = Decoder::new();
        decoder.push(&[0x80, 0x02, 0, 1, 0, 0, 0, 0]);
        assert_eq!(decoder.next(), Err(FrameError::Version(2)));
        let mut decoder = Decoder::new();
        decoder.push(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(FrameError::TooLong(0x00ff_ffff)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let mut decoder = Decoder::new();
            decoder.push(&bytes);
            for _ in 0..64 {
                match decoder.next() {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }

        #[test]
        fn any_header_block_is_headers_or_an_error(block in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _parsed = parse_headers(&block);
        }
    }
}
