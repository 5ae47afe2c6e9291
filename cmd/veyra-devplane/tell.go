package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
)

// event is one line for whoever watches. Fields are told in their order.
type event struct {
	Name   string
	Fields []field
}

type field struct {
	Name  string
	Value any
}

// teller prints events. It belongs to one goroutine.
type teller struct {
	out   io.Writer
	json  bool
	began time.Time
}

func newTeller(out io.Writer, asJSON bool) teller { return teller{out, asJSON, time.Now()} }

func (t teller) tell(e event) {
	elapsed := time.Since(t.began)
	if !t.json {
		fmt.Fprintln(t.out, textLine(elapsed, e))
		return
	}
	line := map[string]any{"event": e.Name, "elapsed_ms": elapsed.Milliseconds()}
	for _, f := range e.Fields {
		line[f.Name] = f.Value
	}
	text, _ := json.Marshal(line)
	fmt.Fprintf(t.out, "%s\n", text)
}

func textLine(elapsed time.Duration, e event) string {
	var line strings.Builder
	fmt.Fprintf(&line, "%7.2fs  %s", elapsed.Seconds(), e.Name)
	for _, f := range e.Fields {
		fmt.Fprintf(&line, "  %s=%v", f.Name, f.Value)
	}
	return line.String()
}

// tell prints the addresses, then what changes, until ctx ends.
func (w *world) tell(ctx context.Context, t teller) {
	listening := event{Name: "listening"}
	for _, name := range []string{"control_plane", "git", "api", "model", "model_name", "dir"} {
		listening.Fields = append(listening.Fields, field{name, w.addresses()[name]})
	}
	t.tell(listening)
	var last controlplanetest.View
	for {
		next, err := w.plane.Wait(ctx, func(v controlplanetest.View) bool { return len(news(last, v)) > 0 })
		for _, e := range news(last, next) {
			t.tell(e)
		}
		last = next
		if err != nil {
			return
		}
	}
}
