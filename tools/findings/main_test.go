package main

import (
	"strings"
	"testing"
	"time"
)

const reached = `{"config":{}} {"SBOM":{}}
{"finding":{"osv":"GO-1","trace":[{"module":"m","version":"v1"}]}}
{"finding":{"osv":"GO-2","trace":[{"module":"m","version":"v1","package":"m/p","function":"F"}]}}`

func TestJudgesFindings(t *testing.T) {
	now := time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		found, list string
		due         bool
		want        string // part of the output or error; "" passes
	}{
		"called and not accepted":  {found: reached, want: "GO-2 is reached: m/p.F of m v1"},
		"called and accepted":      {found: reached, list: "GO-2 2027-02-01 not with our input"},
		"accepted without reason":  {found: reached, list: "GO-2 2027-02-01", want: "want id"},
		"review over":              {found: reached, list: "GO-2 2027-01-01 old", due: true, want: "look again"},
		"review over in lint":      {found: reached, list: "GO-2 2027-01-01 old"},
		"accepted but not found":   {found: `{"SBOM":{}}`, list: "GO-9 2027-02-01 gone", want: "remove its line"},
		"only in a module":         {found: `{"SBOM":{}} {"finding":{"osv":"GO-1","trace":[{"module":"m"}]}}`},
		"check that did not run":   {found: ``, want: "did not run"},
		"check that was cut short": {found: `{"SBOM":{}} {"finding":{"osv"`, want: "reading the check's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(c.found), strings.NewReader(c.list), &out, c.due, now)
			if (err == nil) != (c.want == "") {
				t.Fatalf("err %v, output %q", err, out.String())
			}
			if err != nil && !strings.Contains(out.String()+err.Error(), c.want) {
				t.Errorf("output %q, %v; want %q", out.String(), err, c.want)
			}
		})
	}
}
