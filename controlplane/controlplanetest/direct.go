package controlplanetest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
)

// errCut is what a caller sees of a connection that was cut.
var errCut = errors.New("connection reset by peer")

// Direct carries requests to a handler without a network, so that tests can run
// under testing/synctest, whose clock stands still while a socket is read. Cut
// connections and cut bodies look as they do over a network.
type Direct struct{ Handler http.Handler }

var _ http.RoundTripper = Direct{}

// RoundTrip answers one request.
func (d Direct) RoundTrip(r *http.Request) (res *http.Response, err error) {
	defer func() {
		switch p := recover(); {
		case p == http.ErrAbortHandler:
			res, err = nil, errCut
		case p != nil:
			panic(p)
		}
	}()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	recorder := httptest.NewRecorder()
	d.Handler.ServeHTTP(recorder, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return whole(recorder), nil
}

// whole makes a body that is shorter than promised end as on a cut connection.
func whole(recorder *httptest.ResponseRecorder) *http.Response {
	res := recorder.Result()
	promised, err := strconv.Atoi(res.Header.Get("Content-Length"))
	if err == nil && promised > recorder.Body.Len() {
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(recorder.Body.Bytes()), cutReader{}))
	}
	return res
}

type cutReader struct{}

func (cutReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
