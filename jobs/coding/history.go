package coding

import (
	"github.com/veyra-labs/veyra-sandboxd/provider"
)

const blanked = "[an earlier observation, left out to save room]"

// history is append-only but for blanking old observations in one batch:
// doing that every turn would defeat the provider's prompt cache.
type history struct {
	room     int // characters of the model's context
	redact   func(string) string
	messages []provider.Message
	// nudge waits until all replies to calls are in, since nothing may stand
	// between a call and its reply.
	nudge string
}

func newHistory(room int, redact func(string) string, brief Brief) history {
	h := history{room: room, redact: redact}
	h.messages = []provider.Message{
		{Author: provider.System, Text: systemPrompt},
		{Author: provider.User, Text: redact(briefPrompt(brief, room/2))},
	}
	return h
}

func (h *history) say(text string) {
	h.messages = append(h.messages, provider.Message{Author: provider.User, Text: text})
}

func (h *history) answer(m provider.Message) { h.messages = append(h.messages, m) }

func (h *history) observe(callID, text string) {
	h.messages = append(h.messages, provider.Message{Author: provider.ToolReply, CallID: callID, Text: text})
	if h.size() > h.room*6/10 {
		h.blankOld(10, 3)
	}
}

func (h *history) flushNudge() {
	if h.nudge != "" {
		h.say(h.nudge)
		h.nudge = ""
	}
}

// halve makes room after the provider said that the context is full.
func (h *history) halve() {
	h.room /= 2
	h.blankOld(3, 1)
	for i := range h.messages {
		m := &h.messages[i]
		if m.Author == provider.ToolReply {
			m.Text = cutAt(m.Text, maxObservation/4)
		}
	}
}

// blankOld blanks all but the newest keep observations, fewer while the
// history is still too large, but never the newest least.
func (h *history) blankOld(keep, least int) {
	for ; keep >= least; keep-- {
		h.blankBefore(keep)
		if h.size() <= h.room*6/10 {
			return
		}
	}
}

func (h *history) blankBefore(keep int) {
	for i := len(h.messages) - 1; i >= 0; i-- {
		if h.messages[i].Author != provider.ToolReply {
			continue
		}
		if keep--; keep < 0 {
			h.messages[i].Text = blanked
		}
	}
}

// size counts characters as bytes: a little too many is the safe side.
func (h *history) size() int {
	total := 0
	for _, m := range h.messages {
		total += len(m.Text) + len(m.Raw)
		for _, c := range m.Calls {
			if len(m.Raw) == 0 {
				total += len(c.Arguments)
			}
		}
	}
	return total
}

// tokens estimates what a request costs before it is made: bytes by three.
func (h *history) tokens() int64 { return int64(h.size()/3) + 1000 }
