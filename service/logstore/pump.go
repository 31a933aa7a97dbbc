package logstore

import (
	"sync"
	"time"
)

// pumpQueue is how many records may wait for a slow journal or terminal.
const pumpQueue = 4096

// pump carries out writes that may be slow, in order, off the caller's path.
// Writes that find the queue full are dropped.
type pump struct {
	mu      sync.Mutex
	queue   chan func()
	dropped int
	stopped bool
	done    chan struct{}
}

func (p *pump) start() {
	p.queue, p.done = make(chan func(), pumpQueue), make(chan struct{})
	go func() {
		defer close(p.done)
		for write := range p.queue {
			write()
		}
	}()
}

// do queues a write. It returns how many were dropped since the last that was
// queued.
func (p *pump) do(write func()) (dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0
	}
	select {
	case p.queue <- write:
		dropped, p.dropped = p.dropped, 0
	default:
		p.dropped++
	}
	return dropped
}

// stop waits until what is queued has been written, at most for the time-out:
// a write that hangs is left behind.
func (p *pump) stop(timeout time.Duration) {
	p.mu.Lock()
	p.stopped = true
	close(p.queue)
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(timeout):
	}
}
