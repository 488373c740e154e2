//! Prints how many events the engine handles per second: `cargo run --release -p lockify-sim --example speed`.

fn main() {
    for nodes in [2, 10, 100, 1_000] {
        let speed = lockify_sim::measure_engine(nodes, 3_000_000);
        println!(
            "{nodes:>5} nodes: {:>10.0} events/s, at most {} waiting",
            speed.events_per_s(),
            speed.queue_peak
        );
    }
}
