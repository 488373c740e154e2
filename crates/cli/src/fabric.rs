//! How remote memory is reached: the options of `memory-server` and `remote-lock` for other fabrics than shared memory.

use lockify_fabric::verbs::Settings;

/// How remote memory is reached.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FabricName {
    /// Memory that processes of this machine share.
    Shm,
    /// RDMA, between machines: InfiniBand, RoCE, Soft-RoCE.
    Verbs,
}

/// The RDMA device.
#[derive(clap::Args)]
#[command(next_help_heading = "RDMA")]
pub struct Device {
    /// The device, as `rdma link` names it; the first if none is named
    #[arg(long, value_name = "NAME")]
    rdma_device: Option<String>,
    /// Its port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    rdma_port: u8,
    /// Which of the port's addresses (GIDs), if not the first of RoCE v2 on IPv4
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,
    /// How long an acknowledgement may take: 4 us times 2 to the power of this, and that seven times
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(8..=22))]
    ack_timeout: u8,
}

impl Device {
    pub fn settings(&self) -> Settings {
        Settings {
            device: self.rdma_device.clone(),
            port: self.rdma_port,
            gid_index: self.gid_index,
            ack_timeout: self.ack_timeout,
            ..Settings::default()
        }
    }
}
