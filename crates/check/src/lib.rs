//! Lock histories and their checkers.
