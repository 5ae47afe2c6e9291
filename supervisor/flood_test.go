package supervisor_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// knock sends one token from an address and returns the status.
func (d *door) knock(token, peer string) int {
	r := httptest.NewRequest("POST", "/veyra/connect/challenge", strings.NewReader(
		`{"token":"`+token+`","challenge":"`+goodQuestion+`","veyra_origin":"`+origin+`"}`))
	r.RemoteAddr = peer
	w := httptest.NewRecorder()
	d.public.ServeHTTP(w, r)
	return w.Code
}

// Attack case H02: 10,000 wrong tokens within a minute, from one address and
// from fifty. The right token comes from another address, and from one of the
// flood's own, in the middle of it and at its end: it is answered 200 and, by a
// clock that moves only when somebody waits, at once.
func TestH02FloodsNeitherDelayNorRefuseTheRightToken(t *testing.T) {
	for name, addresses := range map[string]int{"one address": 1, "fifty addresses": 50} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoor(t)
				good := string(d.token(false))
				peer := func(i int) string { return fmt.Sprintf("203.0.113.%d:4000", 1+i%addresses) }
				right := func(from string) {
					t.Helper()
					before := time.Now()
					if status := d.knock(good, from); status != 200 {
						t.Errorf("the right token from %s: %d", from, status)
					}
					if took := time.Since(before); took != 0 {
						t.Errorf("the right token from %s waited for %v", from, took)
					}
				}
				const flood = 10_000
				answers := map[int]int{}
				for i := range flood {
					answers[d.knock(fmt.Sprintf("wrong-token-%030d", i), peer(i))]++
					time.Sleep(time.Minute / flood) // spreads them by the bubble's clock
					if i%1000 == 999 {
						right("198.51.100.7:4000")
					}
				}
				right(peer(0))
				// An address may be wrong ten times and once in six seconds.
				most := addresses * (10 + 10)
				if answers[403]+answers[429] != flood || answers[403] > most || answers[403] < addresses*10 {
					t.Errorf("answers %v, want at most %d of them 403", answers, most)
				}
				// A minute later the address may be wrong again.
				time.Sleep(time.Minute)
				if status := d.knock("wrong-token-000000000000000000000000000000", peer(0)); status != 403 {
					t.Errorf("a minute after the flood a wrong token is answered %d", status)
				}
			})
		})
	}
}

// X-Forwarded-For counts behind the owner's proxy only, and of it only the last
// entry: the rest is what the caller wrote.
func TestForwardedForNamesTheCaller(t *testing.T) {
	const limit = 10
	for name, c := range map[string]struct {
		behindProxy bool
		peer        string
		forwarded   []string
		// varying tells that the addresses that count differ, so that none is
		// limited.
		varying bool
	}{
		"proxy on loopback":               {true, "127.0.0.1:1", []string{"192.0.2.%d"}, true},
		"proxy in a private network":      {true, "10.0.0.1:1", []string{"192.0.2.%d"}, true},
		"proxy on loopback, IPv6":         {true, "[::1]:1", []string{"192.0.2.%d"}, true},
		"proxy by its unique local":       {true, "[fd00::1]:1", []string{"192.0.2.%d"}, true},
		"mapped address":                  {true, "[::ffff:127.0.0.1]:1", []string{"192.0.2.%d"}, true},
		"the last entry counts":           {true, "127.0.0.1:1", []string{"198.51.100.1, 192.0.2.%d"}, true},
		"the last header counts":          {true, "127.0.0.1:1", []string{"198.51.100.1", "192.0.2.%d"}, true},
		"what the caller wrote":           {true, "127.0.0.1:1", []string{"192.0.2.%d, 198.51.100.1"}, false},
		"what the caller wrote, a header": {true, "127.0.0.1:1", []string{"192.0.2.%d", "198.51.100.1"}, false},
		"no address":                      {true, "127.0.0.1:1", []string{"host%d"}, false},
		"with a port":                     {true, "127.0.0.1:1", []string{"192.0.2.1:%d"}, false},
		"an empty end":                    {true, "127.0.0.1:1", []string{"192.0.2.%d,"}, false},
		"a peer from afar":                {true, "203.0.113.9:1", []string{"192.0.2.%d"}, false},
		"a peer from a link":              {true, "[fe80::1]:1", []string{"192.0.2.%d"}, false},
		"one /64 is one caller":           {true, "127.0.0.1:1", []string{"2001:db8::%d"}, false},
		"another mode than proxy":         {false, "127.0.0.1:1", []string{"192.0.2.%d"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t)
			d.openBehind(c.behindProxy)
			limited := 0
			for i := range 3 * limit {
				r := httptest.NewRequest("POST", "/veyra/connect/challenge", strings.NewReader(
					`{"token":"wrong-token-000000000000000000000","challenge":"`+goodQuestion+`"}`))
				r.RemoteAddr = c.peer
				for _, value := range c.forwarded {
					if strings.Contains(value, "%d") {
						value = fmt.Sprintf(value, 1+i)
					}
					r.Header.Add("X-Forwarded-For", value)
				}
				w := httptest.NewRecorder()
				d.public.ServeHTTP(w, r)
				if w.Code == 429 {
					limited++
				}
			}
			if c.varying != (limited == 0) {
				t.Errorf("%d of %d were limited", limited, 3*limit)
			}
		})
	}
}
