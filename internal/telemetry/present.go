package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Present is what holds at one moment. It is asked for with each scrape and kept
// nowhere: a gauge that is set now and then tells another story than status and
// beats for as long as the next time takes.
type Present struct {
	Paired bool
	// Ready is one of Reasons.
	Ready string
	// Running counts the runs that are being executed.
	Running int
	// Lease is what is left of the lease of the current run; nil: there is none.
	Lease *time.Duration
	// Outbox counts the sealed results that are not delivered, of which the first
	// was sealed at Oldest.
	Outbox int
	Oldest time.Time
	// Redacted counts the secrets that were taken out of texts since the start.
	Redacted uint64
	// FreeBytes of the state's file system and Records by state; nil: they could
	// not be read, and have no series for once.
	FreeBytes *uint64
	Records   map[string]int
}

// unfollowed is what holds before anybody can say more.
func unfollowed() Present {
	return Present{Ready: "not_paired", Records: map[string]int{}}
}

// Follow makes scrapes ask now, which may be called from many goroutines at once.
// A second call replaces the first.
func (m *Metrics) Follow(now func() Present) { m.present.now.Store(&now) }

// present collects every metric that is read from one Present, so that they agree
// with each other, too.
type present struct {
	now    atomic.Pointer[func() Present]
	series []momentary
}

var _ prometheus.Collector = (*present)(nil)

// momentary is one of them.
type momentary struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(p Present, say func(value float64, labels ...string))
}

// moment adds a metric that read says with each scrape.
func (m *Metrics) moment(
	name, help string, kind prometheus.ValueType, read func(p Present, say func(value float64, labels ...string)), labels ...string,
) {
	desc := prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	m.present.series = append(m.present.series, momentary{desc, kind, read})
}

// Describe sends the descriptions.
func (p *present) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range p.series {
		ch <- one.desc
	}
}

// Collect asks once and sends what was said.
func (p *present) Collect(ch chan<- prometheus.Metric) {
	at := (*p.now.Load())()
	for _, one := range p.series {
		one.read(at, func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(one.desc, one.kind, value, labels...)
		})
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
