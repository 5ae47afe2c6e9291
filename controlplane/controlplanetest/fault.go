package controlplanetest

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
)

// Fault spoils one answer. Effect says whether the request is carried out
// first: without it the call "failed", with it "done, but the answer was lost".
// Exactly one of the other fields should be set; with none the answer is the
// real one.
type Fault struct {
	Effect bool
	// Lose cuts the connection without an answer.
	Lose bool
	// Delay holds the answer back until the channel is closed or the caller
	// goes away.
	Delay <-chan struct{}
	// Status and Body answer instead. ContentType defaults to text/html.
	Status      int
	Body        string
	ContentType string
	// Header is added to the answer.
	Header http.Header
	// Redirect answers 307 to this address.
	Redirect string
	// Repeat gives the endpoint's previous answer once more.
	Repeat bool
	// CutBody ends the connection in the middle of the real answer's body.
	CutBody bool
}

type plannedFault struct {
	n     int
	fault Fault
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// Fault plans a fault for the n-th call of an endpoint, counted from 1 over the
// plane's life; n = 0 means every call from now on until Heal.
func (p *Plane) Fault(e Endpoint, n int, f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[e] = append(p.faults[e], plannedFault{n, f})
}

// FaultNext plans a fault for the next call of an endpoint.
func (p *Plane) FaultNext(e Endpoint, f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[e] = append(p.faults[e], plannedFault{p.calls[e] + 1, f})
}

// Heal forgets all faults planned for an endpoint.
func (p *Plane) Heal(e Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.faults, e)
}

// count notes a call and returns the fault planned for it and the previous
// answer.
func (p *Plane) count(e Endpoint) (*Fault, *answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	p.calls[e]++
	for _, planned := range p.faults[e] {
		if planned.n == 0 || planned.n == p.calls[e] {
			return &planned.fault, p.last[e]
		}
	}
	return nil, p.last[e]
}

// serveFaulty carries the request out, or not, and spoils the answer.
func (p *Plane) serveFaulty(w http.ResponseWriter, r *http.Request, e Endpoint, real http.HandlerFunc) {
	fault, last := p.count(e)
	got := &answer{status: http.StatusOK, header: http.Header{}}
	if fault == nil || fault.Effect || fault.CutBody {
		got = record(real, r)
		p.mu.Lock()
		p.last[e] = got
		p.notify()
		p.mu.Unlock()
	}
	if fault != nil {
		got = fault.spoil(r, got, last)
	}
	got.send(w)
}

func record(real http.HandlerFunc, r *http.Request) *answer {
	recorder := httptest.NewRecorder()
	real(recorder, r)
	return &answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}
}

// spoil returns what is sent instead of got; it panics with ErrAbortHandler to
// cut the connection.
func (f *Fault) spoil(r *http.Request, got, last *answer) *answer {
	if f.Delay != nil {
		select {
		case <-f.Delay:
		case <-r.Context().Done():
		}
	}
	switch {
	case f.Lose:
		panic(http.ErrAbortHandler)
	case f.Redirect != "":
		got = &answer{http.StatusTemporaryRedirect, http.Header{"Location": {f.Redirect}}, nil}
	case f.Status != 0:
		got = &answer{f.Status, http.Header{"Content-Type": {f.contentType()}}, []byte(f.Body)}
	case f.Repeat && last != nil:
		got = last
	case f.CutBody:
		cut := *got
		cut.header = got.header.Clone()
		cut.header.Set("Content-Length", strconv.Itoa(len(got.body)+1))
		cut.body = got.body[:len(got.body)/2]
		got = &cut
	}
	for name, values := range f.Header {
		got.header[name] = values
	}
	return got
}

func (f *Fault) contentType() string {
	if f.ContentType != "" {
		return f.ContentType
	}
	return "text/html"
}

func (a *answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = bytes.NewReader(a.body).WriteTo(w)
}
