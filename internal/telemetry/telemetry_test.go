package telemetry_test

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/internal/telemetry"
)

func scrape(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("scrape: %d, %v", w.Code, err)
	}
	return string(body)
}

func has(t *testing.T, text, line string) {
	t.Helper()
	if !strings.Contains(text, line+"\n") {
		t.Errorf("metrics lack the line %q", line)
	}
}

func TestSeriesOfClosedListsStartAtZero(t *testing.T) {
	text := scrape(t, telemetry.New("1.2.3"))
	for _, line := range []string{
		`veyra_sandboxd_build_info{version="1.2.3"} 1`,
		`veyra_sandboxd_heartbeats_total{result="ok"} 0`,
		`veyra_sandboxd_ready{reason="not_paired"} 1`,
		`veyra_sandboxd_ready{reason="ok"} 0`,
		`veyra_sandboxd_sandbox_limit_hits_total{limit="oom"} 0`,
		`veyra_sandboxd_signatures_total{statement="connect"} 0`,
		`veyra_sandboxd_journal_records{state="sealed"} 0`,
	} {
		has(t, text, line)
	}
}

func TestSeriesOfWhatDoesNotExistAreAbsent(t *testing.T) {
	m := telemetry.New("dev")
	for _, name := range []string{"lease_remaining_seconds", "outbox_oldest_timestamp_seconds"} {
		if strings.Contains(scrape(t, m), "veyra_sandboxd_"+name+" ") {
			t.Errorf("%s exists without a lease or result", name)
		}
	}
	left := 90 * time.Second
	m.Follow(func() telemetry.Present { return telemetry.Present{Lease: &left} })
	has(t, scrape(t, m), "veyra_sandboxd_lease_remaining_seconds 90")
	m.Follow(func() telemetry.Present { return telemetry.Present{} })
	if strings.Contains(scrape(t, m), "veyra_sandboxd_lease_remaining_seconds ") {
		t.Error("lease_remaining_seconds stays after the lease")
	}
}

// Attack case D07: foreign text never becomes a label.
func TestD07ForeignLabelValuesBecomeOther(t *testing.T) {
	m := telemetry.New("dev")
	const foreign = "veyra/job-1-evil\n"
	m.Beat(foreign)
	m.Job(foreign, foreign, foreign, time.Second)
	m.LimitHit(foreign)
	m.Swept(foreign, 1)
	m.Signed(foreign)
	m.Violation(foreign)
	m.Phase(foreign, time.Second)
	m.SandboxStarted(foreign, time.Second)
	m.ControlPlane(foreign, 700, time.Second)
	text := scrape(t, m)
	if strings.Contains(text, "evil") || strings.Contains(text, `code="700"`) {
		t.Error("foreign text is in the metrics")
	}
	has(t, text, `veyra_sandboxd_control_plane_requests_total{code="other",endpoint="other"} 1`)
	has(t, text, `veyra_sandboxd_jobs_total{outcome="other",role="other",stage="other"} 1`)
}

func TestReadyHoldsOneReason(t *testing.T) {
	m := telemetry.New("dev")
	m.Follow(func() telemetry.Present { return telemetry.Present{Ready: "disk"} })
	text := scrape(t, m)
	has(t, text, `veyra_sandboxd_ready{reason="disk"} 1`)
	has(t, text, `veyra_sandboxd_ready{reason="not_paired"} 0`)
}
