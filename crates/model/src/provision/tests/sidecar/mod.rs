//! The tables of external-provisioner and of its library that are about more than one function here: what becomes of a claim, and of a
//! PersistentVolume, from what is observed to what is written.

mod controller;
mod create;
mod delete;
mod refused;
mod topology;
