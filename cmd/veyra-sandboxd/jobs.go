package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func jobsCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "jobs", Short: "List what ran, with evidence and logs", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return listJobs(cmd.Context(), o) },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the runs, newest first", Args: noArguments,
			RunE: func(cmd *cobra.Command, _ []string) error { return listJobs(cmd.Context(), o) },
		},
		&cobra.Command{
			Use: "show ID", Short: "Show the runs of an assignment with their evidence", Args: exactArguments(1),
			RunE: func(cmd *cobra.Command, args []string) error { return showJob(cmd.Context(), o, args[0]) },
		},
		&cobra.Command{
			Use: "logs ID", Short: "Print the log of an assignment's newest run", Args: exactArguments(1),
			RunE: func(cmd *cobra.Command, args []string) error { return jobLogs(cmd.Context(), o, args[0]) },
		},
		&cobra.Command{
			Use: "delete ID", Short: "Remove log, transcript and patch of an assignment's runs", Args: exactArguments(1),
			RunE: func(cmd *cobra.Command, args []string) error { return deleteJob(cmd.Context(), o, args[0]) },
		},
	)
	return cmd
}

func listJobs(ctx context.Context, o *options) error {
	desk, done, err := openDesk(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	all, err := desk.Jobs(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(append([]supervisor.JobView{}, all...))
	}
	for _, job := range all {
		fmt.Println(jobLine(job))
	}
	return nil
}

func jobLine(job supervisor.JobView) string {
	line := fmt.Sprintf("%s  %-13s  %s/%s  %s", job.Accepted.Format(time.DateTime), job.Kind, job.ID, job.Lease, job.State)
	if job.Reason != "" {
		line += " (" + job.Reason + ")"
	}
	return line
}

func showJob(ctx context.Context, o *options, id string) error {
	desk, done, err := openDesk(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	runs, err := desk.Job(ctx, id)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(runs)
	}
	for _, run := range runs {
		fmt.Println(jobLine(run))
		if len(run.Evidence) > 0 {
			fmt.Println(escapeControls(string(run.Evidence)))
		}
	}
	return nil
}

func jobLogs(ctx context.Context, o *options, id string) error {
	desk, done, err := openDesk(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	return desk.CopyLog(ctx, id, escaping{os.Stdout})
}

func deleteJob(ctx context.Context, o *options, id string) error {
	desk, done, err := openDesk(ctx, o)
	if err != nil {
		return err
	}
	defer done()
	return desk.DeleteJob(ctx, id)
}

// escaping shows strangers' control bytes as text, so that a log can't drive
// the operator's terminal (attack case A14).
type escaping struct{ file *os.File }

func (e escaping) Write(p []byte) (int, error) {
	_, err := e.file.WriteString(escapeControls(string(p)))
	return len(p), err
}

func escapeControls(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r == '\n' || r == '\t' || r >= 0x20 && r != 0x7f && (r < 0x80 || r > 0x9f) && r != 0x2028 && r != 0x202e {
			out.WriteRune(r)
			continue
		}
		fmt.Fprintf(&out, `\x%02x`, r)
	}
	return out.String()
}
