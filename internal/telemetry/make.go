package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func (m *Metrics) plainGauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) plainCounter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets ...float64) prometheus.Histogram {
	h := prometheus.NewHistogram(histogramOpts(name, help, buckets))
	m.registry.MustRegister(h)
	return h
}

func (m *Metrics) histograms(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(histogramOpts(name, help, buckets), []string{label})
	m.registry.MustRegister(h)
	return h
}

// histogramOpts makes histograms both classic and native.
func histogramOpts(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// optional is a gauge whose series exists only while there is something to say.
type optional struct {
	desc *prometheus.Desc

	mu     sync.Mutex
	value  float64
	exists bool
}

func (m *Metrics) optional(name, help string) *optional {
	o := &optional{desc: prometheus.NewDesc(namespace+"_"+name, help, nil, nil)}
	m.registry.MustRegister(o)
	return o
}

var _ prometheus.Collector = (*optional)(nil)

func (o *optional) set(value float64, exists bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.value, o.exists = value, exists
}

// Describe sends the one description.
func (o *optional) Describe(ch chan<- *prometheus.Desc) { ch <- o.desc }

// Collect sends the value, if there is one.
func (o *optional) Collect(ch chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.exists {
		ch <- prometheus.MustNewConstMetric(o.desc, prometheus.GaugeValue, o.value)
	}
}
