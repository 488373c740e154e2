//! Operations under way at a device, for people who want to know why they do not end.

use super::Device;

impl Device {
    /// The operations under way, one line each.
    pub fn under_way(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.tso.under_way().chain(self.locks.under_way()).collect();
        if !self.is_let_in() {
            let waiting = self.readmission.waiting();
            let (record, state) = (&self.record, self.record.state());
            lines.push(format!(
                "waits to be let in, {waiting} requests behind that; its epoch is {}, its medium has number {:x} and asks \
                 for {:x}, and the array has {:x}",
                state.epoch.0,
                record.key,
                record.asked,
                state.key(self.config.id)
            ));
        }
        if !self.readmission.is_over() {
            let awaited: Vec<_> = self.readmission.awaited().collect();
            let waiting = self.readmission.waiting();
            lines.push(format!("waits for {awaited:?} to settle, {waiting} requests behind them"));
        }
        if self.is_marking() {
            lines.push("requests wait for a mark in the record".to_owned());
        }
        let (running, waiting) = self.disk.counts();
        if running + waiting > 0 {
            lines.push(format!("its disk does {running} operations, and {waiting} wait"));
        }
        if self.broken {
            lines.push("its disk has failed".to_owned());
        }
        lines
    }
}
