//! The messages of a remote shell on a gang connection. A command goes one way, its output and exit code the other.

use super::frame::{FrameError, MAX_FRAME, Payload};

/// Longest piece of input or output, in bytes.
pub const MAX_PIECE: usize = 32 * 1024;
/// Longest command, in bytes.
pub const MAX_COMMAND: usize = MAX_FRAME - 64;

/// One message of the remote shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Run this command in a shell. It comes first, and only once.
    Run(String),
    /// More input for the command.
    Input(Vec<u8>),
    /// The command's input has ended.
    InputEnd,
    /// The command printed this to stdout.
    Output(Vec<u8>),
    /// The command printed this to stderr.
    Error(Vec<u8>),
    /// The command has ended with this code, and all its output has been sent. The code is 128 + n if signal n ended
    /// it.
    Exit(u8),
}

impl Payload for Packet {
    const PROTOCOL: &'static [u8] = b"trainingjob-remote-shell-1";

    fn to_bytes(&self) -> Result<Vec<u8>, FrameError> {
        let (kind, rest) = match self {
            Self::Run(command) if command.len() > MAX_COMMAND => return Err(FrameError::TooLong(command.len())),
            Self::Run(command) => (b'r', command.as_bytes()),
            Self::Input(bytes) => (b'i', bytes.as_slice()),
            Self::InputEnd => (b'n', &[][..]),
            Self::Output(bytes) => (b'o', bytes.as_slice()),
            Self::Error(bytes) => (b'e', bytes.as_slice()),
            Self::Exit(code) => (b'x', std::slice::from_ref(code)),
        };
        Ok([&[kind], rest].concat())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        const UNKNOWN: FrameError = FrameError::Malformed("it is nothing that a remote shell says");
        let (kind, rest) = bytes.split_first().ok_or(UNKNOWN)?;
        match (kind, rest) {
            (b'r', command) => String::from_utf8(command.to_owned()).map(Self::Run).map_err(|_| UNKNOWN),
            (b'i', bytes) => Ok(Self::Input(bytes.to_owned())),
            (b'n', []) => Ok(Self::InputEnd),
            (b'o', bytes) => Ok(Self::Output(bytes.to_owned())),
            (b'e', bytes) => Ok(Self::Error(bytes.to_owned())),
            (b'x', [code]) => Ok(Self::Exit(*code)),
            _ => Err(UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Channel, Event, NONCE, Secret};
    use super::super::message::{MemberId, Message, Time};
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time(1000);

    fn key() -> Secret {
        Secret::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    /// Both sides of a connection. The dialing side speaks `F` and wants attempt `wanted`.
    fn meet<F: Payload>(wanted: &str) -> Result<(Channel<Packet>, Channel<F>), FrameError> {
        let mut server = Channel::<Packet>::accept(key(), "uid/3".to_owned(), [1; NONCE], NOW);
        let member = MemberId::new("worker", 0);
        let (mut client, greeting) =
            Channel::<F>::dial(key(), wanted.to_owned(), [2; NONCE], &member, "pod", NOW).unwrap();
        let (mut first, mut hello, mut proof) = (vec![], vec![], vec![]);
        server.receive(&greeting, NOW, &mut first)?;
        client.receive(&first, NOW, &mut hello)?;
        server.receive(&hello, NOW, &mut proof)?;
        client.receive(&proof, NOW, &mut vec![])?;
        Ok((server, client))
    }

    #[test]
    fn sent_packets_arrive_unchanged() {
        let (mut server, mut client) = meet::<Packet>("uid/3").unwrap();
        let said = [
            Packet::Run("a".repeat(MAX_COMMAND)),
            Packet::Input(vec![0xff; MAX_PIECE]),
            Packet::InputEnd,
            Packet::Output(vec![]),
            Packet::Error(vec![0]),
            Packet::Exit(255),
        ];
        let mut outgoing = client.take_outgoing().unwrap();
        assert!(client.take_outgoing().is_none() && client.send(&Packet::InputEnd) == Err(FrameError::NotProven));
        for packet in said {
            let bytes = outgoing.send(&packet).unwrap();
            assert_eq!(server.receive(&bytes, NOW, &mut vec![]), Ok(vec![Event::Message(packet)]));
        }
        let long = Packet::Run("a".repeat(MAX_COMMAND + 1));
        assert_eq!(outgoing.send(&long), Err(FrameError::TooLong(MAX_COMMAND + 1)));
    }

    /// The gang has one key for everything that its agents do with each other, and for all its attempts.
    #[test]
    fn proof_for_another_purpose_is_rejected() {
        assert!(meet::<Packet>("uid/3").is_ok());
        assert_eq!(meet::<Packet>("uid/2").err(), Some(FrameError::Forged), "of another attempt");
        assert_eq!(meet::<Packet>("uid").err(), Some(FrameError::Forged));
        assert_eq!(meet::<Message>("uid/3").err(), Some(FrameError::Forged), "of the gang's own talk");
    }

    proptest! {
        #[test]
        fn decoded_packet_reencodes_to_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(packet) = Packet::from_bytes(&bytes) {
                prop_assert_eq!(packet.to_bytes(), Ok(bytes));
            }
        }
    }
}
