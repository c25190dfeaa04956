//! Proves that a driver that answers as no driver should hurts nobody but itself: its AttacherConfig says what is wrong,
//! memory stays bounded, nothing is lost, and the drivers beside it are served as ever.

mod calls;
mod drivers;
mod memory;
mod server;
mod silent;
