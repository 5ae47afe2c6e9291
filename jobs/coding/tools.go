package coding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/headtail"
	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Bounds of the tools.
const (
	commandTime     = 120 * time.Second
	maxCommandTime  = 600 * time.Second
	maxObservation  = 10_000  // bytes, half of it the head
	maxEditFile     = 2 << 20 // bytes of a file that edit reads
	maxCommandBytes = 64 << 10
	keptOutput      = 1 << 20 // bytes of a command's output held while it runs
)

// tools are offered in a fixed order and with fixed bytes, since prompt caches
// go by both.
func tools() []provider.Tool {
	return []provider.Tool{
		{
			Name:        "bash",
			Description: "Run one shell command in the workspace. Each call is a fresh shell; no network. Output is cut to head and tail.",
			Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"},` +
				`"timeout_s":{"type":"integer","description":"seconds, at most 600"}},"required":["command"]}`),
		},
		{
			Name:        "edit",
			Description: "Replace text in a file below the workspace. old must occur exactly once; an empty old creates a new file.",
			Schema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"},"old":{"type":"string"},` +
				`"new":{"type":"string"}},"required":["path","old","new"]}`),
		},
		{
			Name:        "finish",
			Description: "Say that the change is complete, with a short summary of what was changed and why.",
			Schema:      json.RawMessage(`{"type":"object","properties":{"summary":{"type":"string"}},"required":["summary"]}`),
		},
	}
}

// modelEnv keeps Python's caches out of the change: the model runs tests in the
// tree that is collected, and not every project ignores what they leave.
func modelEnv() []string {
	return append(sandbox.DefaultEnv(), "PYTHONDONTWRITEBYTECODE=1", "PYTEST_ADDOPTS=-p no:cacheprovider")
}

// observation is what the model is told of a call.
type observation struct {
	text     string
	invalid  bool // not a call that could be run
	failed   bool // it ran and did not do what was wanted
	edited   bool // a file was written
	finished bool
}

func invalid(format string, args ...any) observation {
	return observation{text: "error: " + fmt.Sprintf(format, args...), invalid: true, failed: true}
}

func (r *round) runCall(ctx context.Context, call provider.Call) (observation, error) {
	if call.BadJSON {
		return invalid("the arguments are not a JSON object; nothing was run"), nil
	}
	switch call.Name {
	case "bash":
		return r.bash(ctx, call.Arguments)
	case "edit":
		return r.edit(ctx, call.Arguments)
	case "finish":
		return r.finishCall(call.Arguments), nil
	}
	return invalid("there is no tool of this name; use bash, edit or finish"), nil
}

func (r *round) finishCall(raw json.RawMessage) observation {
	var args struct {
		Summary string `json:"summary"`
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return invalid("summary must be a text")
	}
	r.result.Summary = args.Summary
	return observation{text: "finished", finished: true}
}

func (r *round) bash(ctx context.Context, raw json.RawMessage) (observation, error) {
	var args struct {
		Command string  `json:"command"`
		Timeout float64 `json:"timeout_s"`
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return invalid("command must be a text and timeout_s a number"), nil
	}
	if args.Command == "" || len(args.Command) > maxCommandBytes || strings.ContainsRune(args.Command, 0) {
		return invalid("command must be a text of 1 to %d bytes", maxCommandBytes), nil
	}
	output := headtail.New(keptOutput)
	exit, err := r.place.Run(ctx, sandbox.Command{
		Argv: []string{"/bin/bash", "-c", args.Command}, Stdout: output, Timeout: commandLimit(args.Timeout), Env: modelEnv(),
	})
	if err != nil {
		return observation{}, fmt.Errorf("running a command of the model: %w", err)
	}
	r.limitSeen(exit.Limits)
	return observation{text: r.show(exit, output), failed: exit.Code != 0}, nil
}

func commandLimit(seconds float64) time.Duration {
	if !(seconds >= 1) {
		return commandTime
	}
	return min(time.Duration(min(seconds, 1e6))*time.Second, maxCommandTime)
}

// show says everything in words: an empty output, the status, the limits.
func (r *round) show(exit sandbox.Exit, output *headtail.Buffer) string {
	text := Observe(r.loop.cfg.Redact(output.String()))
	if strings.TrimSpace(text) == "" {
		text = "(no output)"
	}
	switch {
	case exit.Ended != "":
		text += fmt.Sprintf("\n[ended by the limit %s]", exit.Ended)
	case exit.Code != 0:
		text += fmt.Sprintf("\n[exit status %d]", exit.Code)
	}
	for _, limit := range exit.Limits {
		text += fmt.Sprintf("\n[the limit %s was reached]", limit)
	}
	return text
}

func (r *round) edit(ctx context.Context, raw json.RawMessage) (observation, error) {
	var args struct {
		Path string  `json:"path"`
		Old  *string `json:"old"`
		New  *string `json:"new"`
	}
	if err := json.Unmarshal(raw, &args); err != nil || args.Old == nil || args.New == nil {
		return invalid("path, old and new must be texts"), nil
	}
	name, why := workspacePath(args.Path)
	if why == "" && r.brief.Editable != nil && !r.brief.Editable(name) {
		why = "this path may not be changed in this job"
	}
	if why != "" {
		return invalid("%s", why), nil
	}
	return r.replace(ctx, name, *args.Old, *args.New)
}

// workspacePath takes paths below the workspace, relative or absolute.
func workspacePath(p string) (name, why string) {
	p = strings.TrimPrefix(p, sandbox.Workspace+"/")
	switch {
	case p == "" || len(p) > 4096 || strings.ContainsRune(p, 0):
		return "", "path must be a text of 1 to 4096 bytes"
	case strings.HasPrefix(p, "/"):
		return "", "path must be inside the workspace"
	}
	clean := path.Clean(p)
	for _, part := range strings.Split(clean, "/") {
		if part == ".." || strings.EqualFold(part, ".git") {
			return "", "path may hold neither .. nor .git"
		}
	}
	if clean == "." {
		return "", "path must name a file"
	}
	return clean, ""
}

func (r *round) replace(ctx context.Context, name, before, after string) (observation, error) {
	content, exists, err := readFile(ctx, r.place, name)
	if err != nil {
		return observation{}, err
	}
	edited, problem := replaceOnce(content, exists, before, after)
	if problem != "" {
		return observation{text: "error: " + Observe(r.loop.cfg.Redact(problem)), failed: true}, nil
	}
	written, err := writeFile(ctx, r.place, name, edited)
	if err != nil || written != "" {
		return observation{text: "error: " + written, failed: true}, err
	}
	return observation{text: "edited " + name, edited: true}, nil
}

// replaceOnce refuses what a guess could put in the wrong place.
func replaceOnce(content []byte, exists bool, before, after string) ([]byte, string) {
	if before == "" {
		if exists && len(content) > 0 {
			return nil, "the file exists; old must be the text to replace"
		}
		return []byte(after), ""
	}
	if !exists {
		return nil, "there is no regular file of this name that can be read (limit 2 MiB); an empty old creates one"
	}
	switch count := bytes.Count(content, []byte(before)); count {
	case 1:
		return bytes.Replace(content, []byte(before), []byte(after), 1), ""
	case 0:
		return nil, "old does not occur in the file. " + nearest(content, before)
	default:
		return nil, fmt.Sprintf("old occurs %d times; give more context", count)
	}
}

// nearest shows the real lines around the one that is most like the first
// line of what was looked for.
func nearest(content []byte, before string) string {
	wanted := strings.Fields(firstLine(before))
	lines := strings.Split(string(content), "\n")
	best, at := 0, -1
	for i, line := range lines {
		if score := commonWords(wanted, line); score > best {
			best, at = score, i
		}
	}
	if at < 0 {
		return "Read the file first."
	}
	var b strings.Builder
	b.WriteString("The nearest lines are:\n")
	for i := max(0, at-3); i < min(len(lines), at+6); i++ {
		fmt.Fprintf(&b, "%d\t%s\n", i+1, cutLine(lines[i]))
	}
	return b.String()
}

func firstLine(s string) string {
	for _, line := range strings.Split(s, "\n") {
		if strings.TrimSpace(line) != "" {
			return line
		}
	}
	return ""
}

func commonWords(wanted []string, line string) int {
	score := 0
	for _, word := range wanted {
		if strings.Contains(line, word) {
			score += len(word)
		}
	}
	return score
}

func cutLine(line string) string {
	if len(line) > 300 {
		return line[:300] + "…"
	}
	return line
}
