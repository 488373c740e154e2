//! The shared disk of the simulated file system: nodes may access it only under its locks.

use std::collections::BTreeMap;

use lockify_core::{Name, NodeId};

/// A directory and the blocks of its objects.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Blocks of the objects in it.
    pub objects: Vec<u32>,
    /// Blocks that are free; the last one freed is used first, so that names come back at once.
    pub free: Vec<u32>,
}

/// Everything on the disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The directories.
    pub directories: Vec<Directory>,
    /// Blocks that a node has allocated and not yet linked: what its journal would tell.
    allocated: BTreeMap<NodeId, Vec<(usize, u32)>>,
}

impl Disk {
    /// Empty directories with so many free blocks each.
    pub fn new(directories: usize, blocks: u32) -> Disk {
        let directory = |d: usize| Directory {
            objects: Vec::new(),
            free: (0..blocks).map(|b| d as u32 * blocks + b).collect(),
        };
        Disk { directories: (0..directories).map(directory).collect(), allocated: BTreeMap::new() }
    }

    /// Takes a free block.
    pub fn allocate(&mut self, node: NodeId, directory: usize) -> Option<u32> {
        let block = self.directories[directory].free.pop()?;
        self.allocated.entry(node).or_default().push((directory, block));
        Some(block)
    }

    /// A creation is complete: the object can be found.
    pub fn link(&mut self, node: NodeId, directory: usize, block: u32) {
        self.settle(node, block);
        self.directories[directory].objects.push(block);
    }

    /// A creation was given up.
    pub fn give_back(&mut self, node: NodeId, directory: usize, block: u32) {
        if self.settle(node, block) {
            self.directories[directory].free.push(block);
        }
    }

    /// An object is deleted and its block free.
    pub fn free(&mut self, directory: usize, block: u32) {
        let directory = &mut self.directories[directory];
        directory.objects.retain(|other| *other != block);
        directory.free.push(block);
    }

    /// A creation that was complete is undone; its block is free after [`Disk::give_back`].
    pub fn unlink(&mut self, node: NodeId, directory: usize, block: u32) -> bool {
        let objects = &mut self.directories[directory].objects;
        let before = objects.len();
        objects.retain(|other| *other != block);
        let found = objects.len() < before;
        if found {
            self.allocated.entry(node).or_default().push((directory, block));
        }
        found
    }

    fn settle(&mut self, node: NodeId, block: u32) -> bool {
        let Some(blocks) = self.allocated.get_mut(&node) else { return false };
        let before = blocks.len();
        blocks.retain(|(_, other)| *other != block);
        blocks.len() < before
    }

    /// Journal replay: blocks that a fenced node had allocated and not linked are free again.
    pub fn replay(&mut self, node: NodeId) {
        for (directory, block) in self.allocated.remove(&node).unwrap_or_default() {
            self.directories[directory].free.push(block);
        }
    }
}

/// The lock of a directory.
pub fn directory_name(directory: usize) -> Name {
    Name::new(format!("dir{directory}")).expect("short enough")
}

/// The lock of an object's inode.
pub fn inode_name(block: u32) -> Name {
    Name::new(format!("i{block}")).expect("short enough")
}

/// The lock of those that have an object open.
pub fn iopen_name(block: u32) -> Name {
    Name::new(format!("o{block}")).expect("short enough")
}
