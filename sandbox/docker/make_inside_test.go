package docker

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/policies"
)

// script answers the requests of a container's life, each kind by functions in
// turn, of which the last one stays, and keeps what was asked.
type script struct {
	mu      sync.Mutex // guards what follows
	asked   []string
	answers map[string][]http.HandlerFunc // by method, and "create"
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	if strings.HasSuffix(r.URL.Path, "/_ping") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1.41/containers/"))
	kind := r.Method
	if strings.HasSuffix(r.URL.Path, "/create") {
		kind = "create"
	}
	answers := s.answers[kind]
	if len(answers) == 0 {
		http.Error(w, `{"message":"nobody expected it"}`, http.StatusNotImplemented)
		return
	}
	answers[0](w, r)
	if len(answers) > 1 {
		s.answers[kind] = answers[1:]
	}
}

// requests are what was asked so far.
func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// status answers with an error of the engine's.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"message":"the engine's word"}`, code) }
}

func made(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"Id":%q}`, idOf("e"))
}

// odd makes the container and answers with no id.
func odd(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"Id":"veyra"}`)
}

// cut does what it was asked for and loses the answer.
func cut(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// owned says of which instance the container is that has the name.
func owned(instance, place string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"Id":%q,"State":{},"HostConfig":{},"Config":{"Labels":{%q:%q,%q:%q}}}`,
			idOf("d"), labelInstance, instance, labelPlace, place)
	}
}

var (
	taken, none, broken = status(http.StatusConflict), status(http.StatusNotFound), status(http.StatusInternalServerError)
	gone                = status(http.StatusNoContent)
)

const (
	creates = "POST create"
	asks    = "GET veyra-x-s1/json"
)

// removes is the request for the container of an id, which ends in end.
func removes(end string) string { return "DELETE " + idOf(end) }

// TestContainerOfALostAnswer: whatever the engine answers when a container is made,
// what may exist is removed afterwards, and a container of somebody else is not.
func TestContainerOfALostAnswer(t *testing.T) {
	type answers = map[string][]http.HandlerFunc
	for name, c := range map[string]struct {
		answers answers
		fails   bool
		owes    bool
		asked   []string // by making, then by closing
	}{
		"nothing odd": {answers{"create": {made}, "DELETE": {gone}}, false, false, []string{creates, removes("e")}},
		"left by ourselves": {
			answers{"create": {taken, made}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			false, false,
			[]string{creates, asks, removes("d"), creates, removes("e")},
		},
		"gone meanwhile": {
			answers{"create": {taken, made}, "GET": {none}, "DELETE": {gone}},
			false, false,
			[]string{creates, asks, creates, removes("e")},
		},
		"somebody else's":      {answers{"create": {taken}, "GET": {owned("y", "here")}}, true, false, []string{creates, asks}},
		"our name elsewhere":   {answers{"create": {taken}, "GET": {owned("x", "there")}}, true, false, []string{creates, asks}},
		"not one of ours":      {answers{"create": {taken}, "GET": {owned("", "")}}, true, false, []string{creates, asks}},
		"taken by we know not": {answers{"create": {taken}, "GET": {broken}}, true, false, []string{creates, asks}},
		"taken again": {
			answers{"create": {taken, taken}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			true, false,
			[]string{creates, asks, removes("d"), creates},
		},
		"stays": {
			answers{"create": {taken}, "GET": {owned("x", "here")}, "DELETE": {broken}},
			true, true,
			[]string{creates, asks, removes("d"), removes("d")},
		},
		"refused": {answers{"create": {status(http.StatusBadRequest)}}, true, false, []string{creates}},
		"cut": {
			answers{"create": {cut}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			true, false,
			[]string{creates, asks, removes("d")},
		},
		"cut after a conflict": {
			answers{"create": {taken, cut}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			true, false,
			[]string{creates, asks, removes("d"), creates, asks, removes("d")},
		},
		"cut, and nothing made": {answers{"create": {cut}, "GET": {none}}, true, true, []string{creates, asks}},
		"cut, and not ours":     {answers{"create": {cut}, "GET": {owned("y", "here")}}, true, false, []string{creates, asks}},
		"cut twice":             {answers{"create": {cut}, "GET": {broken}}, true, true, []string{creates, asks}},
		"fails half way": {
			answers{"create": {broken}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			true, false,
			[]string{creates, asks, removes("d")},
		},
		"no id": {
			answers{"create": {odd}, "GET": {owned("x", "here")}, "DELETE": {gone}},
			true, false,
			[]string{creates, asks, removes("d")},
		},
	} {
		s := &script{answers: c.answers}
		b := scripted(t, s)
		p := planFor(policies.Limits{MemoryBytes: 1, PIDs: 1, ShmBytes: 1}, false)
		if err := b.make(t.Context(), p); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		b.removeContainer(t.Context())
		if b.job.driver.debts != c.owes || b.container != "" || b.unsure != "" {
			t.Errorf("%s: owes %t, still knows %q and %q", name, b.job.driver.debts, b.container, b.unsure)
		}
		if diff := cmp.Diff(c.asked, s.requests()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// scripted is a sandbox of the instance x on a scripted engine.
func scripted(t *testing.T, s *script) *box {
	t.Helper()
	d := &Driver{engine: engineOf(t, s.ServeHTTP), origin: origin{place: "here"}}
	d.config = Config{Instance: "x", Log: slog.New(slog.DiscardHandler)}
	return &box{job: &job{driver: d}}
}

// TestRemovalOfALostAnswer: a removal ends well when the container is gone, whoever
// removed it; one that was told and not answered is told again.
func TestRemovalOfALostAnswer(t *testing.T) {
	waited := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	once, twice, wait := []string{removes("a")}, []string{removes("a"), removes("a")}, "POST "+idOf("a")+"/wait"
	for name, c := range map[string]struct {
		remove, wait []http.HandlerFunc
		fails        bool
		asked        []string
	}{
		"removed":           {[]http.HandlerFunc{gone}, nil, false, once},
		"gone already":      {[]http.HandlerFunc{none}, nil, false, once},
		"done, and cut":     {[]http.HandlerFunc{cut, none}, nil, false, twice},
		"cut, and going on": {[]http.HandlerFunc{cut, taken}, []http.HandlerFunc{waited(`{"StatusCode":137}`)}, false, append(slices.Clone(twice), wait)},
		"going on":          {[]http.HandlerFunc{taken}, []http.HandlerFunc{waited(`{"StatusCode":137}`)}, false, append(slices.Clone(once), wait)},
		"gone before we wait": {
			[]http.HandlerFunc{taken}, []http.HandlerFunc{none}, false, append(slices.Clone(once), wait),
		},
		"goes on and fails": {
			[]http.HandlerFunc{taken},
			[]http.HandlerFunc{waited(`{"StatusCode":0,"Error":{"Message":"device or resource busy"}}`)},
			true,
			append(slices.Clone(once), wait),
		},
		"fails":   {[]http.HandlerFunc{broken}, nil, true, twice},
		"refused": {[]http.HandlerFunc{status(http.StatusBadRequest)}, nil, true, once},
	} {
		s := &script{answers: map[string][]http.HandlerFunc{"DELETE": c.remove, "POST": c.wait}}
		e := engineOf(t, s.ServeHTTP)
		if err := e.remove(t.Context(), idOf("a")); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.asked, s.requests()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAnswerAboutAnotherContainer: an engine that mixes containers up, or names none,
// would have us hold, count and end processes of somebody else.
func TestAnswerAboutAnotherContainer(t *testing.T) {
	for _, id := range []string{"", "a", idOf("b"), strings.ToUpper(idOf("a")), idOf("a") + "/x"} {
		e := engineOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			fmt.Fprintf(w, `{"Id":%q,"State":{"Running":true,"Pid":1},"HostConfig":{},"Config":{}}`, id)
		})
		if saw, err := e.inspect(t.Context(), idOf("a")); err == nil {
			t.Errorf("an answer about %q: %+v", id, saw)
		}
	}
}
