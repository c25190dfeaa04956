//! The frames of HTTP/2 (RFC 9113): a server that is made of them can say exactly what it has processed, and who passes a connection on sees
//! what is sent over it.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long that is with which a client begins.
pub const PREFACE: usize = 24;
const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub const NO_ERROR: u32 = 0;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// `:status: 200` by its number in the table of HPACK.
pub const OK: &[u8] = &[0x88];

/// A frame as it was sent.
pub struct Frame {
    pub head: [u8; 9],
    pub payload: Vec<u8>,
}

impl Frame {
    pub async fn read(end: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut head = [0; 9];
        end.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        end.read_exact(&mut payload).await?;
        Ok(Self { head, payload })
    }

    pub fn kind(&self) -> u8 {
        self.head[3]
    }

    pub fn flags(&self) -> u8 {
        self.head[4]
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes([self.head[5], self.head[6], self.head[7], self.head[8]])
    }
}

/// The server's end of a connection.
pub struct FrameServer<S> {
    end: S,
    body: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> FrameServer<S> {
    pub async fn begin(mut end: S) -> io::Result<Self> {
        end.read_exact(&mut [0; PREFACE]).await?;
        let mut server = Self { end, body: Vec::new() };
        server.write(SETTINGS, 0, 0, &[]).await?;
        Ok(server)
    }

    /// The next request that has come in as a whole: its stream and its body. Settings and pings are answered.
    pub async fn request(&mut self) -> io::Result<(u32, Vec<u8>)> {
        loop {
            let frame = Frame::read(&mut self.end).await?;
            let (kind, flags, stream) = (frame.kind(), frame.flags(), frame.stream());
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await?,
                PING if flags & ACK == 0 => self.write(PING, ACK, 0, &frame.payload).await?,
                DATA => self.body.extend(frame.payload),
                _ => {}
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                return Ok((stream, std::mem::take(&mut self.body)));
            }
        }
    }

    /// Answers with these headers, in the form of HPACK, and nothing else.
    pub async fn answer(&mut self, stream: u32, headers: &[u8]) -> io::Result<()> {
        self.write(HEADERS, END_HEADERS | END_STREAM, stream, headers).await
    }

    pub async fn reset(&mut self, stream: u32, reason: u32) -> io::Result<()> {
        self.write(RST_STREAM, 0, stream, &reason.to_be_bytes()).await
    }

    /// Processes no stream with a number greater than `last`.
    pub async fn go_away(&mut self, last: u32, reason: u32) -> io::Result<()> {
        let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
        self.write(GOAWAY, 0, 0, &payload).await
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.end.write_all(&[&head, payload].concat()).await
    }
}
