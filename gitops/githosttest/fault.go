package githosttest

import (
	"net/http"
)

// Fault is what happens to one request. The zero Fault lets it through.
type Fault struct {
	kind   faultKind
	status int
	header http.Header
	body   string
	after  int64
}

type faultKind int

const (
	faultNone faultKind = iota
	faultStatus
	faultDrop
	faultLose
	faultCut
)

// Pass lets a request through.
func Pass() Fault { return Fault{} }

// Status answers without doing anything. The headers come in pairs.
func Status(code int, body string, headers ...string) Fault {
	h := http.Header{}
	for i := 0; i+1 < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return Fault{kind: faultStatus, status: code, body: body, header: h}
}

// Redirect answers with a Location.
func Redirect(code int, location string) Fault { return Status(code, "", "Location", location) }

// Drop ends the connection without doing anything.
func Drop() Fault { return Fault{kind: faultDrop} }

// Lose does the work and ends the connection without an answer.
func Lose() Fault { return Fault{kind: faultLose} }

// Cut does the work and ends the connection after so many bytes of the body.
func Cut(bytes int64) Fault { return Fault{kind: faultCut, after: bytes} }

// faulty applies the host's fault to a request; done means that it is over.
func (h *Host) faulty(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, done bool) {
	if h.Fault == nil {
		return w, false
	}
	switch f := h.Fault(r); f.kind {
	case faultStatus:
		for k, v := range f.header {
			w.Header()[k] = v
		}
		w.WriteHeader(f.status)
		_, _ = w.Write([]byte(f.body))
		return w, true
	case faultDrop:
		panic(http.ErrAbortHandler)
	case faultLose:
		return &lossy{ResponseWriter: w, header: http.Header{}}, false
	case faultCut:
		return &lossy{ResponseWriter: w, header: w.Header(), left: f.after, send: true}, false
	}
	return w, false
}

// lossy lets at most left bytes of an answer out.
type lossy struct {
	http.ResponseWriter
	header http.Header
	left   int64
	send   bool
}

func (l *lossy) Header() http.Header { return l.header }

func (l *lossy) WriteHeader(code int) {
	if l.send {
		l.ResponseWriter.WriteHeader(code)
	}
}

func (l *lossy) Write(p []byte) (int, error) {
	if n := min(int64(len(p)), l.left); n > 0 {
		l.left -= n
		_, _ = l.ResponseWriter.Write(p[:n])
	}
	return len(p), nil
}

// finish ends a lossy answer's connection.
func finish(w http.ResponseWriter) {
	l, ok := w.(*lossy)
	if !ok {
		return
	}
	if l.send {
		_ = http.NewResponseController(l.ResponseWriter).Flush()
	}
	panic(http.ErrAbortHandler)
}
