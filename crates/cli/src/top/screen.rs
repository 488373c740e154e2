//! How it looks on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::widgets::{Block, Paragraph, Row, Table};

use super::fit::{Fitted, fit, line, shorten};
use super::sample::{Contended, Node, Top};

/// The screen's memory from one look to the next.
#[derive(Default)]
pub struct Screen {
    /// Locks scrolled away at the top.
    first: usize,
    /// Which daemon answers.
    daemon: String,
}

impl Screen {
    /// The screen of a daemon's data.
    pub fn of(daemon: String) -> Screen {
        Screen { daemon, ..Screen::default() }
    }

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
        let (waiting, contended) =
            (format!("waiting: {waiting}"), format!("contended: {contended}"));
        let parts = ["lockify top", &waiting, &contended, "(q ends)", self.daemon.trim_end()];
        let line = line(&parts, title.width.into());
        frame.render_widget(Paragraph::new(line).bold(), title);
        let rows: Vec<_> = top.nodes.iter().map(Node::row).collect();
        frame.render_widget(table("nodes", &Node::HEADING, &rows, &[], above.width), above);
        let remarks = remarks.iter().map(|line| shorten(line.trim_end(), between.width.into()));
        let remarks = remarks.collect::<Vec<_>>().join("\n");
        frame.render_widget(Paragraph::new(remarks).red(), between);
        self.first = self.first.min(top.contended.len().saturating_sub(1));
        let shown = top.contended.iter().skip(self.first).take(below.height.into());
        let rows: Vec<_> = shown.map(Contended::row).collect();
        let table = table("contended locks", &Contended::HEADING, &rows, &NAMES, below.width);
        frame.render_widget(table, below);
    }
}

/// The columns of contended locks that are text: the name, and whose lock is in the way.
const NAMES: [usize; 2] = [0, 5];

fn table<'a>(
    title: &'a str,
    heading: &[&str],
    rows: &[Vec<String>],
    text: &[usize],
    width: u16,
) -> Table<'a> {
    // Without the frame.
    let Fitted { widths, heading, rows } =
        fit(heading, rows, text, usize::from(width.saturating_sub(2)));
    let header = Row::new(heading).style(Style::new().bold());
    let widths: Vec<Constraint> = widths.into_iter().map(Constraint::Length).collect();
    let rows: Vec<Row<'a>> = rows.into_iter().map(Row::new).collect();
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

    /// Numbers of a busy cluster, on the narrowest terminal that people use.
    #[test]
    fn numbers_are_whole_or_not_there() {
        let mut top = super::super::sample::tests::top();
        let big = 31_415_926_535_897_932;
        (top.nodes[0].locks, top.nodes[0].waiting) = (big, big);
        top.contended[0].waiters = big as usize;
        for width in [20, 40, 60, 80, 200] {
            let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
            terminal.draw(|frame| Screen::default().draw(frame, &top)).unwrap();
            let text = terminal.backend().to_string();
            let whole = text.matches(&big.to_string()).count();
            // Each cut off piece of it would be one more.
            assert_eq!(text.matches("31415").count(), whole, "{text}");
            assert!(whole >= 3 || text.contains('…'), "{text}");
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
