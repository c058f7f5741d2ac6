-- A store of schema 3 as the first collbench with this schema made it, in SQLite. A store that exists must stay usable.
PRAGMA application_id = 1668246636;
CREATE TABLE store (key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (key)) WITHOUT ROWID;
CREATE TABLE runs (run_id INTEGER PRIMARY KEY, path TEXT NOT NULL, name TEXT, operation TEXT, started_s REAL, finished_s REAL, exit_code
INTEGER, ranks INTEGER, nodes INTEGER, results INTEGER, fingerprint TEXT NOT NULL, command TEXT, allocation TEXT, launch_index INTEGER,
launches INTEGER, version TEXT, imported INTEGER, slowed INTEGER, missing INTEGER, added_s REAL, info TEXT, facts TEXT, UNIQUE (path));
CREATE INDEX runs_by_started_s ON runs (started_s);
CREATE INDEX runs_by_name ON runs (name);
CREATE INDEX runs_by_allocation ON runs (allocation);
CREATE TABLE cases (case_id INTEGER PRIMARY KEY, content TEXT NOT NULL, operation TEXT, backend TEXT, device TEXT, dtype TEXT, redop TEXT,
root INTEGER, mode TEXT, in_place INTEGER, buffers TEXT, window_size INTEGER, ranks_group TEXT, ranks INTEGER, nodes INTEGER, registration
TEXT, algorithm TEXT, protocol TEXT, traffic TEXT, streams INTEGER, size_bytes INTEGER, call_form TEXT, UNIQUE (content));
CREATE INDEX cases_by_operation_backend_size_bytes ON cases (operation, backend, size_bytes);
CREATE TABLE results (case_id INTEGER NOT NULL, run_id INTEGER NOT NULL, number INTEGER NOT NULL, n INTEGER, time_p50_s REAL, time_ci_low_s
REAL, time_ci_high_s REAL, algbw_bytes_per_s REAL, busbw_bytes_per_s REAL, percent_of_ceiling REAL, wrong INTEGER, remark_id INTEGER,
checked INTEGER, n_eff REAL, time_min_s REAL, time_p95_s REAL, time_p99_s REAL, time_max_s REAL, time_rank_mean_s REAL, ceiling_id INTEGER,
ceiling_bytes_per_s REAL, hard_bound_id INTEGER, hard_bound_bytes_per_s REAL, probe_before_s REAL, probe_after_s REAL, ended_s REAL, stolen
REAL, preempted INTEGER, detail TEXT, PRIMARY KEY (case_id, run_id, number)) WITHOUT ROWID;
CREATE INDEX results_by_run_id_case_id ON results (run_id, case_id);
CREATE TABLE remarks (remark_id INTEGER PRIMARY KEY, content TEXT NOT NULL, quality TEXT, flags TEXT, na TEXT, stopped TEXT, UNIQUE
(content));
CREATE TABLE ceilings (ceiling_id INTEGER PRIMARY KEY, content TEXT NOT NULL, kind TEXT, model TEXT, limited_by TEXT, source TEXT, UNIQUE
(content));
CREATE TABLE documents (document_id INTEGER PRIMARY KEY, digest TEXT NOT NULL, content BLOB NOT NULL, UNIQUE (digest));
CREATE TABLE nodes (node_id INTEGER PRIMARY KEY, name TEXT NOT NULL, UNIQUE (name));
CREATE TABLE run_nodes (run_id INTEGER NOT NULL, node_id INTEGER NOT NULL, PRIMARY KEY (run_id, node_id)) WITHOUT ROWID;
CREATE INDEX run_nodes_by_node_id_run_id ON run_nodes (node_id, run_id);
CREATE TABLE labels (run_id INTEGER NOT NULL, label TEXT NOT NULL, PRIMARY KEY (run_id, label)) WITHOUT ROWID;
CREATE INDEX labels_by_label ON labels (label);
CREATE TABLE hunts (run_id INTEGER NOT NULL, command TEXT, result TEXT, backend TEXT, compared TEXT, places INTEGER, rounds INTEGER,
size_bytes INTEGER, confirmed INTEGER, inconclusive INTEGER, PRIMARY KEY (run_id)) WITHOUT ROWID;
CREATE TABLE suspects (run_id INTEGER NOT NULL, number INTEGER NOT NULL, node_id INTEGER NOT NULL, kind TEXT, part TEXT, state TEXT, ratio
REAL, ratio_low REAL, ratio_high REAL, PRIMARY KEY (run_id, number, node_id)) WITHOUT ROWID;
CREATE INDEX suspects_by_node_id ON suspects (node_id);
CREATE TABLE node_pairs (run_id INTEGER NOT NULL, place INTEGER NOT NULL, node_id INTEGER NOT NULL, name TEXT, partners INTEGER,
sent_bytes_per_s REAL, received_bytes_per_s REAL, latency_s REAL, wrong INTEGER, PRIMARY KEY (run_id, place)) WITHOUT ROWID;
CREATE INDEX node_pairs_by_node_id ON node_pairs (node_id);
CREATE TABLE telemetry (run_id INTEGER NOT NULL, number INTEGER NOT NULL, node_id INTEGER NOT NULL, gpu TEXT NOT NULL, ended_s REAL, samples
INTEGER, sm_mhz REAL, power_w REAL, temperature_c REAL, throttled REAL, PRIMARY KEY (run_id, node_id, gpu, number)) WITHOUT ROWID;
CREATE TABLE verdicts (verdict_id INTEGER PRIMARY KEY, path TEXT NOT NULL, fingerprint TEXT NOT NULL, result TEXT, mode TEXT, baseline TEXT,
candidates TEXT, judged_s REAL, cases INTEGER, confirmed INTEGER, suspected INTEGER, slower INTEGER, faster INTEGER, unchanged INTEGER,
inconclusive INTEGER, cause TEXT, document_id INTEGER, missing INTEGER, added_s REAL, UNIQUE (path));
CREATE INDEX verdicts_by_judged_s ON verdicts (judged_s);
CREATE TABLE verdict_groups (verdict_id INTEGER NOT NULL, number INTEGER NOT NULL, operation TEXT, backend TEXT, size_class TEXT, state
TEXT, outcome TEXT, factor REAL, limit_factor REAL, worst TEXT, worst_factor REAL, cases INTEGER, missing INTEGER, PRIMARY KEY (verdict_id,
number)) WITHOUT ROWID;
CREATE VIEW history AS SELECT results.run_id, results.case_id, runs.name AS run, runs.path, strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s,
'unixepoch') AS started, runs.started_s, runs.allocation, runs.version, cases.operation, cases.backend, cases.device, cases.dtype,
cases.redop, cases.root, cases.mode, cases.in_place, cases.buffers, cases.window_size, cases.ranks_group, cases.ranks, cases.nodes,
cases.registration, cases.algorithm, cases.protocol, cases.traffic, cases.streams, cases.size_bytes, cases.call_form, results.n,
results.time_p50_s, results.time_ci_low_s, results.time_ci_high_s, results.algbw_bytes_per_s, results.busbw_bytes_per_s,
results.percent_of_ceiling, results.wrong, results.checked, results.n_eff, results.time_min_s, results.time_p95_s, results.time_p99_s,
results.time_max_s, results.time_rank_mean_s, results.ceiling_bytes_per_s, results.hard_bound_bytes_per_s, results.probe_before_s,
results.probe_after_s, results.ended_s, results.stolen, results.preempted, ceilings.limited_by, remarks.quality, remarks.flags, remarks.na
FROM results JOIN runs ON runs.run_id = results.run_id JOIN cases ON cases.case_id = results.case_id LEFT JOIN remarks ON remarks.remark_id
= results.remark_id LEFT JOIN ceilings ON ceilings.ceiling_id = results.ceiling_id;
CREATE VIEW node_history AS SELECT nodes.name AS node, results.run_id, results.case_id, runs.name AS run, runs.path,
strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s, 'unixepoch') AS started, runs.started_s, runs.allocation, runs.version, cases.operation,
cases.backend, cases.device, cases.dtype, cases.redop, cases.root, cases.mode, cases.in_place, cases.buffers, cases.window_size,
cases.ranks_group, cases.ranks, cases.nodes, cases.registration, cases.algorithm, cases.protocol, cases.traffic, cases.streams,
cases.size_bytes, cases.call_form, results.n, results.time_p50_s, results.time_ci_low_s, results.time_ci_high_s, results.algbw_bytes_per_s,
results.busbw_bytes_per_s, results.percent_of_ceiling, results.wrong, results.checked, results.n_eff, results.time_min_s,
results.time_p95_s, results.time_p99_s, results.time_max_s, results.time_rank_mean_s, results.ceiling_bytes_per_s,
results.hard_bound_bytes_per_s, results.probe_before_s, results.probe_after_s, results.ended_s, results.stolen, results.preempted,
ceilings.limited_by, remarks.quality, remarks.flags, remarks.na FROM results JOIN runs ON runs.run_id = results.run_id JOIN cases ON
cases.case_id = results.case_id LEFT JOIN remarks ON remarks.remark_id = results.remark_id LEFT JOIN ceilings ON ceilings.ceiling_id =
results.ceiling_id JOIN run_nodes ON run_nodes.run_id = results.run_id JOIN nodes ON nodes.node_id = run_nodes.node_id;
CREATE VIEW suspect_history AS SELECT suspects.run_id, runs.name AS run, strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s, 'unixepoch') AS
started, runs.started_s, nodes.name AS node, suspects.kind, suspects.part, suspects.state, suspects.ratio FROM suspects JOIN runs ON
runs.run_id = suspects.run_id JOIN nodes ON nodes.node_id = suspects.node_id;
CREATE VIEW pair_history AS SELECT node_pairs.run_id, runs.name AS run, strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s, 'unixepoch') AS
started, runs.started_s, nodes.name AS node, node_pairs.name AS place, node_pairs.partners, node_pairs.sent_bytes_per_s,
node_pairs.received_bytes_per_s, node_pairs.latency_s, node_pairs.wrong FROM node_pairs JOIN runs ON runs.run_id = node_pairs.run_id JOIN
nodes ON nodes.node_id = node_pairs.node_id;
CREATE VIEW telemetry_history AS SELECT telemetry.run_id, telemetry.number, runs.name AS run, strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s,
'unixepoch') AS started, runs.started_s, nodes.name AS node, telemetry.gpu, telemetry.ended_s, telemetry.samples, telemetry.sm_mhz,
telemetry.power_w, telemetry.temperature_c, telemetry.throttled FROM telemetry JOIN runs ON runs.run_id = telemetry.run_id JOIN nodes ON
nodes.node_id = telemetry.node_id;
INSERT INTO store (key, value) VALUES ('schema', '3');
