pub use csi_attacher_model::answer::{ApiError, ApiErrorKind};
