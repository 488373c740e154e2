//! How it looks on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::widgets::{Block, Paragraph, Row, Table};

use super::sample::{Contended, Node, Top};

/// What the screen remembers from one look to the next.
#[derive(Default)]
pub struct Screen {
    /// Locks scrolled away at the top.
    first: usize,
}

impl Screen {
    /// Scrolls the list of locks.
    pub fn scroll(&mut self, by: isize) {
        self.first = self.first.saturating_add_signed(by);
    }

    /// Draws it.
    pub fn draw(&mut self, frame: &mut Frame<'_>, top: &Top) {
        let remarks = top.remarks();
        // A small terminal shows some of the nodes and some of the locks.
        let most = usize::from(frame.area().height / 2);
        let nodes = (top.nodes.len() + 3).min(most.max(4)) as u16;
        let heights = [
            Constraint::Length(1),
            Constraint::Length(nodes),
            Constraint::Length(remarks.len() as u16),
            Constraint::Min(3),
        ];
        let [title, above, between, below] = Layout::vertical(heights).areas(frame.area());
        let waiting: usize = top.contended.iter().map(|c| c.waiters).sum();
        let contended = top.contended.len();
        let line = format!("lockify top   waiting: {waiting}   contended: {contended}   (q ends)");
        frame.render_widget(Paragraph::new(line).bold(), title);
        let rows = top.nodes.iter().map(|n| Row::new(n.row()));
        let widths = [5, 6, 10, 9, 8, 7, 10, 10, 10, 10].map(Constraint::Length);
        frame.render_widget(table("nodes", &Node::HEADING, rows, widths), above);
        frame.render_widget(Paragraph::new(remarks.concat()).red(), between);
        self.first = self.first.min(top.contended.len().saturating_sub(1));
        let rows = top.contended.iter().skip(self.first).map(|c| Row::new(c.row()));
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Fill(1),
        ];
        frame.render_widget(table("contended locks", &Contended::HEADING, rows, widths), below);
    }
}

fn table<'a, const N: usize>(
    title: &'a str,
    heading: &[&'a str],
    rows: impl Iterator<Item = Row<'a>>,
    widths: [Constraint; N],
) -> Table<'a> {
    let header = Row::new(heading.to_vec()).style(Style::new().bold());
    Table::new(rows, widths).header(header).block(Block::bordered().title(title))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, scroll: isize) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut screen = Screen::default();
        screen.scroll(scroll);
        let top = super::super::sample::tests::top();
        terminal.draw(|frame| screen.draw(frame, &top)).unwrap();
        terminal
    }

    #[test]
    fn nodes_remarks_and_contended_locks_are_shown() {
        let text = drawn(100, 20, 0).backend().to_string();
        for part in
            ["waiting: 2", "contended: 1", "GRANTS/S", "10.0", "answer from node 3", "busy", "3.0s"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn no_size_and_no_scrolling_is_too_much() {
        for (width, height) in [(0, 0), (1, 1), (10, 3), (300, 100)] {
            for scroll in [-5, 0, 1000] {
                drawn(width, height, scroll);
            }
        }
    }
}
