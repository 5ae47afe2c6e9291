package coding

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/provider"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// LoopConfig bounds one round of the loop.
type LoopConfig struct {
	// Steps is how many answers a round may take; 0: 100.
	Steps int
	// OutputTokens bounds one answer; 0: 8,192.
	OutputTokens int64
	// JobTokens bounds input and output of the whole job; 0: 2,000,000.
	JobTokens int64
	// ContextCharacters is the room of the model's context; 0: 240,000.
	ContextCharacters int
	// FirstPause is the pause before a provider in trouble is asked again,
	// doubled from time to time; 0: two seconds.
	FirstPause time.Duration
	// Redact takes the exact secrets out of what is sent and kept; nil: as is.
	Redact func(string) string
}

func (c LoopConfig) withDefaults() LoopConfig {
	if c.Steps == 0 {
		c.Steps = 100
	}
	if c.OutputTokens == 0 {
		c.OutputTokens = 8192
	}
	if c.JobTokens == 0 {
		c.JobTokens = 2_000_000
	}
	if c.ContextCharacters == 0 {
		c.ContextCharacters = 240_000
	}
	if c.FirstPause == 0 {
		c.FirstPause = 2 * time.Second
	}
	if c.Redact == nil {
		c.Redact = func(s string) string { return s }
	}
	return c
}

// maxBadAnswers in a row end a round: more would only spend tokens.
const maxBadAnswers = 3

// Loop is the default engine: the model asks for tools, which act in place,
// until it finishes or a budget ends. It may serve several jobs at once.
type Loop struct {
	provider provider.Provider
	cfg      LoopConfig
}

var _ Engine = (*Loop)(nil)

// NewLoop makes a loop over a provider.
func NewLoop(p provider.Provider, cfg LoopConfig) *Loop {
	return &Loop{provider: p, cfg: cfg.withDefaults()}
}

// round is the state of one Change. One goroutine owns it.
type round struct {
	loop    *Loop
	place   Place
	brief   Brief
	meter   Meter
	history history
	watch   watch
	result  Result
	bad     int // unusable answers in a row
	talked  bool
	warned  bool
	gone    bool  // the sandbox ended with a command: nothing more can be done in it
	trouble error // of the provider, while it lasts
}

// Change runs one round (see Engine).
func (l *Loop) Change(ctx context.Context, place Place, brief Brief, meter Meter) (Result, error) {
	ctx, cancel := context.WithDeadline(ctx, brief.Deadline)
	defer cancel()
	r := &round{loop: l, brief: brief, meter: meter}
	r.place = watchedPlace{place, &r.gone}
	r.history = newHistory(l.cfg.ContextCharacters, l.cfg.Redact, brief)
	for {
		done, err := r.step(ctx)
		if done || err != nil {
			return r.finish(ctx, err)
		}
	}
}

// finish turns the end of the time into a budget: a change made by then still
// goes to the tests.
func (r *round) finish(ctx context.Context, err error) (Result, error) {
	if err != nil && r.trouble == nil && ctx.Err() == context.DeadlineExceeded && !time.Now().Before(r.brief.Deadline) {
		r.result.Ended = BudgetTime
		return r.result, nil
	}
	return r.result, err
}

// step is one request to the model and the tools it asked for.
func (r *round) step(ctx context.Context) (bool, error) {
	if ended := r.budget(); ended != "" {
		r.result.Ended = ended
		return true, nil
	}
	r.warnOnce()
	reply, err := r.ask(ctx)
	if err != nil {
		return false, err
	}
	if reply == nil {
		return false, nil
	}
	return r.act(ctx, reply)
}

func (r *round) budget() Budget {
	if r.result.Steps >= r.loop.cfg.Steps {
		return BudgetSteps
	}
	input, output := r.meter.Spent()
	need := r.history.tokens() + r.loop.cfg.OutputTokens
	if input+output+need > r.loop.cfg.JobTokens {
		return BudgetTokens
	}
	return ""
}

// warnOnce tells the model at four fifths of a budget to come to an end.
func (r *round) warnOnce() {
	input, output := r.meter.Spent()
	near := r.result.Steps*5 >= r.loop.cfg.Steps*4 || (input+output)*5 >= r.loop.cfg.JobTokens*4
	if r.warned || !near {
		return
	}
	r.warned = true
	r.history.say("Most of the budget is used. Finish what is needed now, then call finish.")
}

// ask returns nil, nil when the answer could not be used and the model was
// told so.
func (r *round) ask(ctx context.Context) (*provider.Message, error) {
	r.result.Steps++
	reply, err := r.request(ctx)
	if err == nil {
		err = r.spend(ctx, reply.Usage)
	}
	switch kind := provider.KindOf(err); {
	case kind == provider.EmptyResponse:
		return nil, r.badAnswer(&Error{Kind: Empty, Err: err}, "The answer was empty. Call one of the tools.")
	case err != nil:
		return nil, err
	}
	r.note("assistant", reply.Message)
	if reply.Message.Truncated {
		return nil, r.badAnswer(&Error{Kind: OutputInvalid, Err: fmt.Errorf("answers are cut off")},
			"The answer was cut off and nothing of it was run. Make smaller edits, one at a time.")
	}
	r.history.answer(reply.Message)
	return &reply.Message, nil
}

// request halves what is kept when the context is full, twice.
func (r *round) request(ctx context.Context) (provider.Reply, error) {
	for try := 0; ; try++ {
		reply, err := r.chat(ctx, provider.Request{
			Messages: r.history.messages, Tools: tools(), MaxTokens: r.loop.cfg.OutputTokens,
		})
		if provider.KindOf(err) != provider.ContextOverflow || try == 2 {
			return reply, err
		}
		r.history.halve()
	}
}

func (r *round) spend(ctx context.Context, usage provider.Usage) error {
	if err := r.meter.Spend(ctx, usage.Input, usage.Output); err != nil {
		return fmt.Errorf("counting tokens: %w", err)
	}
	return nil
}

// badAnswer asks again, and gives up with cause after the third in a row.
func (r *round) badAnswer(cause error, advice string) error {
	r.bad++
	r.result.FormatRepairs++
	if r.bad >= maxBadAnswers {
		return cause
	}
	r.history.say(advice)
	return nil
}

// act runs the calls of a message in order. Talk without a call is taken for an
// end after one nudge.
func (r *round) act(ctx context.Context, m *provider.Message) (bool, error) {
	if len(m.Calls) == 0 {
		r.result.Summary = m.Text
		if r.talked {
			return true, nil
		}
		r.talked = true
		r.history.say("Use the tools to make the change, and call finish when it is done.")
		return false, nil
	}
	r.talked = false
	return r.runCalls(ctx, m.Calls)
}

func (r *round) runCalls(ctx context.Context, calls []provider.Call) (bool, error) {
	valid, finished := false, false
	for _, call := range calls {
		seen, err := r.runCall(ctx, call)
		if err != nil {
			return false, err
		}
		valid = valid || !seen.invalid
		finished = finished || seen.finished
		r.history.observe(call.ID, seen.text)
		r.note("tool", map[string]string{"call": call.ID, "text": seen.text})
		if r.gone {
			return true, nil
		}
		if advice, stuck := r.watch.see(call, seen); stuck {
			return false, &Error{Kind: Stuck, Err: fmt.Errorf("%s", advice)}
		} else if advice != "" {
			r.history.nudge = advice
		}
	}
	r.history.flushNudge()
	if valid {
		r.bad = 0
		return finished, nil
	}
	r.bad++
	r.result.FormatRepairs++
	if r.bad >= maxBadAnswers {
		return false, &Error{Kind: OutputInvalid, Err: fmt.Errorf("%d answers without a usable tool call", r.bad)}
	}
	return false, nil
}

// note writes one line of the transcript. Losing one is no reason to stop.
func (r *round) note(kind string, v any) {
	if r.brief.Transcript == nil {
		return
	}
	line, err := json.Marshal(map[string]any{"kind": kind, "step": r.result.Steps, "value": v})
	if err == nil {
		_, _ = r.brief.Transcript.Write(append(line, '\n'))
	}
}

// limitSeen keeps each sandbox limit that a command ran into, once.
func (r *round) limitSeen(limits []sandbox.Limit) {
	for _, limit := range limits {
		known := false
		for _, have := range r.result.Limits {
			known = known || have == limit
		}
		if !known {
			r.result.Limits = append(r.result.Limits, limit)
		}
	}
}
