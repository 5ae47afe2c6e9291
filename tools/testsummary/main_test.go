package main

import (
	"bytes"
	"strings"
	"testing"
)

func summarise(lines ...string) (summary, string) {
	var out bytes.Buffer
	s := summary{out: &out, kept: map[name][]string{}, reasons: map[string]bool{}}
	_ = s.read(strings.NewReader(strings.Join(lines, "\n")))
	_ = s.close("")
	return s, out.String()
}

func TestFailuresAreShownAndCounted(t *testing.T) {
	s, out := summarise(
		`{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}`, `{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"loud\n"}`, `{"Action":"fail","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"    x_test.go:1: not applicable: no moon\n"}`, `{"Action":"skip","Package":"p","Test":"TestC"}`,
		`{"Action":"output","Package":"p","Output":"FAIL\tp\t1s\n"}`, `{"Action":"fail","Package":"p"}`)
	if s.passed != 1 || s.failed != 1 || s.skipped != 1 || !s.broken || !s.reasons["not applicable: no moon"] {
		t.Errorf("%+v", s)
	}
	if strings.Contains(out, "quiet") || !strings.Contains(out, "loud") || !strings.Contains(out, "1 passed, 1 failed, 1 skipped\n") || !strings.Contains(out, "FAIL\tp\t1s") {
		t.Errorf("shown:\n%s", out)
	}
}

func TestPanicOfAPackageIsAFailure(t *testing.T) {
	s, out := summarise(`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"q","Output":"panic: oh\n"}`, `{"Action":"fail","Package":"q"}`)
	if !s.broken || !strings.Contains(out, "panic: oh") {
		t.Errorf("%+v\n%s", s, out)
	}
}
