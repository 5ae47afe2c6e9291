// Package jobs is the story of a job: worker.go tells a paid job step by step,
// one file a step, and qualifier.go the qualification. A step takes the result
// of the one before it, so that none can be left out. The package cannot sign,
// submit or write the journal: it gets credentials and checkpoints through
// small ports (run.go) and returns evidence. Start reading at worker.go.
package jobs
