//! A thousand nodes.

use crate::recorder::*;
use lockify_sim::*;

#[test]
fn a_thousand_nodes_cost_only_the_links_they_use() {
    let mut sim = Sim::new(1, plain(), |_| Recorder::default());
    let nodes = sim.join_many(1_000);
    sim.run_until(0);
    assert_eq!(sim.links(), 0);
    for (i, from) in nodes.iter().enumerate() {
        for hop in [1, 10, 100] {
            send(&mut sim, *from, nodes[(i + hop) % nodes.len()], [hop as u64]);
        }
    }
    sim.inject(Fault::Crash { node: nodes[500], power_loss: false });
    let seen = run(&mut sim, 5_000);
    assert_eq!(sim.links(), 3_000);
    let messages = seen.iter().filter(|(_, seen)| matches!(seen, Seen::Message(..)));
    assert_eq!(messages.count(), 3_000 - 6, "three from and three to the node that crashed");
}

#[test]
fn the_measurement_does_what_it_says() {
    let speed = measure_engine(1_000, 50_000);
    assert_eq!((speed.nodes, speed.events), (1_000, 50_000));
    assert!(speed.queue_peak >= 1_000 && speed.events_per_s() > 0.0);
    assert_eq!(measure_engine(0, 50_000).events, 0);
    // One node has nobody to talk to: start, and a refused connection.
    assert!(measure_engine(1, 50_000).events < 10);
}
