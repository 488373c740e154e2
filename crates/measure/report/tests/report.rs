//! Rows, tables and pages.

use lockify_report::{
    Page, Plot, Point, ReadError, Row, Scale, Series, Value, Writer, metric, read, read_file, table,
};

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (policy, nodes, rounds, published) in [
        ("claim", 1, [1000.0, 1010.0, 990.0], None),
        ("claim", 5, [960.0, 950.0, 940.0], Some(0.94)),
        ("directory", 1, [1000.0, 1000.0, 1000.0], None),
        ("directory", 5, [140.0, 150.0, 130.0], Some(0.14)),
    ] {
        let row = |metric, rounds: &[f64]| {
            Row::of("demo", metric, rounds).with("policy", policy).with("nodes", nodes)
        };
        rows.push(row(&metric::CREATES_PER_S, &rounds));
        let ratio = row(&metric::RATIO_TO_ONE_NODE, &[rounds[0] / 1000.0]);
        rows.push(published.map_or(ratio.clone(), |p| ratio.published(p)));
        for (percentile, us) in [(Value::from(50), 12.5), (99.into(), 80.0), (99.9.into(), 1234.5)]
        {
            rows.push(row(&metric::LATENCY_US, &[us]).with("percentile", percentile));
        }
    }
    rows
}

#[test]
fn the_documented_example_is_a_row() {
    let line = r#"{"bench":"demo","case":{"policy":"claim","nodes":5,"active":1},"metric":"creates_per_s","unit":"1/s","value":1.0,"rounds":[1.0,0.9],"published":null}"#;
    let row = &read(line.as_bytes()).unwrap()[0];
    let keys: Vec<&str> = row.case.keys().map(String::as_str).collect();
    assert_eq!(keys, ["policy", "nodes", "active"], "the case keeps its order");
    assert_eq!(serde_json::to_string(row).unwrap(), line);
}

#[test]
fn rows_survive_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.jsonl");
    let mut writer = Writer::create(&path).unwrap();
    let rows = rows();
    rows.iter().for_each(|row| writer.write(row).unwrap());
    // They are there before the writer is closed.
    assert_eq!(read_file(&path).unwrap(), rows);
}

#[test]
fn bad_rows_and_numbers_are_named() {
    let good = serde_json::to_string(&rows()[0]).unwrap();
    for bad in ["{", "{}", &good.replace("\"value\"", "\"valeu\""), "\u{0}"] {
        let error = read(format!("{good}\n\n{bad}\n").as_bytes()).unwrap_err();
        assert!(matches!(error, ReadError::NoRow { line: 3, .. }), "{error}");
    }
    let error = read(&b"\xff\n"[..]).unwrap_err();
    assert!(error.to_string().starts_with("line 1"), "{error}");
    assert!(read_file("no/such/file").unwrap_err().to_string().contains("cannot open"));
    let nothing = Row::of("demo", &metric::CREATES_PER_S, &[f64::NAN]);
    let error = Writer::new(Vec::new()).write(&nothing).unwrap_err();
    assert!(error.to_string().contains("creates_per_s of demo is not a finite number"), "{error}");
}

#[test]
fn metrics_have_the_names_that_everybody_uses() {
    let names: Vec<&str> = metric::ALL.iter().map(|m| m.name).collect();
    let expect = "creates_per_s ratio_to_one_node round_trips_per_create messages_per_create \
        packets_per_create lock_wait_share latency_us violations resends refusals barrier_waits \
        locks_per_s ratio_to_bare verbs_per_lock retry_share messages_per_lock ops_per_s processor_us_per_op messages_per_op \
        delayed_share mean_latency_ms peak_ops_per_s busy_share checked_ops events_per_s";
    assert_eq!(names, expect.split_whitespace().collect::<Vec<_>>());
    assert_eq!(metric::Metric::named("latency_us"), Some(metric::LATENCY_US));
}

#[test]
fn the_table_has_a_line_per_case_and_a_column_per_metric() {
    let expect = "\
policy     nodes  creates_per_s [1/s]  ratio_to_one_node  latency_us p50 [us]  latency_us p99 [us]  latency_us p99.9 [us]  ratio_to_one_node published
---------  -----  -------------------  -----------------  -------------------  -------------------  ---------------------  ---------------------------
claim      1                 1000 ±1%                  1                 12.5                   80                   1234
claim      5                  950 ±1%               0.96                 12.5                   80                   1234                         0.94
directory  1                     1000                  1                 12.5                   80                   1234
directory  5                  140 ±7%               0.14                 12.5                   80                   1234                         0.14
";
    assert_eq!(table(&rows()).to_string(), expect);
    assert_eq!(table(&[]).to_string(), "\n\n");
    let two = [rows().remove(0), Row { bench: "other".into(), ..rows().remove(0) }];
    assert!(table(&two).to_string().starts_with("bench  policy"), "{}", table(&two));
}

#[test]
fn plots_take_their_series_from_rows() {
    let rows = rows();
    let plot = Plot::lines_of(&rows, &metric::CREATES_PER_S, "nodes", &["policy"]);
    let names: Vec<&str> = plot.series.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["claim", "directory"]);
    let expect = Point { x: 5.0, y: 140.0, range: Some((130.0, 150.0)) };
    assert_eq!(plot.series[1].points[1], expect);
    let plot = Plot::percentiles_of(&rows, &metric::LATENCY_US, &["policy", "nodes"]);
    assert_eq!(plot.series[3].name, "directory, nodes 5");
    assert_eq!(plot.series[3].points.len(), 3);
    let cdf = Series::cdf("all", &(0..10_000).map(f64::from).collect::<Vec<_>>());
    assert!(cdf.points.len() <= 501);
    assert_eq!((cdf.points.last().unwrap().x, cdf.points.last().unwrap().y), (9999.0, 100.0));
}

fn page() -> Page {
    let rows = rows();
    let name = "<script>alert(\"&\")</script>\u{0}";
    Page::new(name)
        .text("A text with < and \u{1b}.")
        .plot(Plot::lines_of(&rows, &metric::CREATES_PER_S, "nodes", &["policy"]))
        .plot(Plot::bars_of(&rows, &metric::CREATES_PER_S, "policy", &["nodes"]).title(name))
        .plot(Plot::percentiles_of(&rows, &metric::LATENCY_US, &["policy", "nodes"]))
        .plot(
            Plot::cdf("Distribution", "latency [us]").series(Series::cdf(name, &[1.0, 2.0, 90.0])),
        )
        .plot(Plot::new("nothing", "x", "y").x_scale(Scale::Log).series(Series::new("", [])))
        .texts(table(&rows))
        .table(&rows)
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    let html = page().html();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let count = |name: &str| document.descendants().filter(|n| n.has_tag_name(name)).count();
    assert_eq!((count("svg"), count("table"), count("script")), (5, 2, 0));
    for outside in ["http:", "https:", "//", "src=", "href=", "@import", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for odd in ["NaN", "inf"] {
        assert!(!html.contains(odd), "{odd}");
    }
    let mut ids: Vec<&str> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), all), (2, 2), "ids are unique in the page");
}

#[test]
fn all_marks_are_within_the_drawing() {
    let html = page().html();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let rects = document.descendants().filter(|n| n.has_tag_name("rect"));
    let mut seen = 0;
    for rect in rects {
        let get = |name: &str| rect.attribute(name).unwrap().parse::<f64>().unwrap();
        assert!(get("x") >= 76.0 && get("y") >= 0.0, "{rect:?}");
        assert!(get("x") + get("width") <= 760.0 && get("y") + get("height") <= 400.0, "{rect:?}");
        seen += 1;
    }
    // Two series of two bars, twice (colour and hatching), and two entries of the legend, twice.
    assert_eq!(seen, 12);
    // Rounds that differ have error bars.
    assert!(html.contains("m-4 0h8"));
}

#[test]
fn a_page_is_written_or_the_error_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    page().write(&path).unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), page().html());
    assert!(page().write(dir.path().join("no/where.html")).is_err());
}
