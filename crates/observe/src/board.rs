//! The objects of a TensorBoard, as the watches show them.

use std::time::Instant;

/// The objects of one job's TensorBoard, and the outcome of creating them.
#[derive(Clone, Debug, Default)]
pub struct ObservedTensorBoard {
    /// Its Deployment.
    pub deployment: Option<BoardPart>,
    /// Its Service.
    pub service: Option<BoardPart>,
    /// Nothing is tried before this time.
    pub wait: Option<Instant>,
    /// The last published reason why there is none.
    pub published_reason: Option<String>,
}

/// One object of a TensorBoard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardPart {
    /// UID of the object.
    pub uid: String,
    /// Replicas of a Deployment.
    pub replicas: Option<i32>,
}
