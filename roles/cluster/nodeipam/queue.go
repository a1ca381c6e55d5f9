package nodeipam

import (
	"context"
	"sync"
	"time"

	"github.com/cnibox/cnibox/store/cluster/web"
)

// queue has the names of the nodes that wait for a worker, in the order in which they were added. A
// name is given to one worker at a time.
type queue struct {
	mu    sync.Mutex
	added *sync.Cond
	due   []string
	items map[string]*item
	// retries are the pauses after failures.
	retries web.Backoff
}

// item is the state of a name in a queue.
type item struct {
	due, running, again bool
	backoff             web.Backoff
	timer               *time.Timer
}

func newQueue(retries web.Backoff) *queue {
	q := &queue{items: map[string]*item{}, retries: retries}
	q.added = sync.NewCond(&q.mu)
	return q
}

// add adds a name unless it waits already. If a worker has it, the name is added when that is done.
func (q *queue) add(names ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range names {
		i := q.items[name]
		if i == nil {
			i = &item{backoff: q.retries}
			q.items[name] = i
		}
		q.push(name, i)
	}
}

func (q *queue) push(name string, i *item) {
	i.again = i.running
	if i.due || i.running {
		return
	}
	if i.timer != nil {
		i.timer.Stop()
		i.timer = nil
	}
	i.due = true
	q.due = append(q.due, name)
	q.added.Signal()
}

// next returns the next name, or false after the end of ctx.
func (q *queue) next(ctx context.Context) (name string, ok bool) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.added.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.due) == 0 && ctx.Err() == nil {
		q.added.Wait()
	}
	if ctx.Err() != nil {
		return "", false
	}
	name = q.due[0]
	q.due = q.due[1:]
	i := q.items[name]
	i.due, i.running = false, true
	return name, true
}

// done is called after next. With retry the name is added again after a pause, which grows with the
// number of failures.
func (q *queue) done(name string, retry bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.items[name]
	i.running = false
	switch {
	case i.again:
		q.push(name, i)
	case retry:
		i.timer = time.AfterFunc(i.backoff.Next(0), func() { q.add(name) })
	default:
		delete(q.items, name)
	}
}

// stop ends the pauses.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, i := range q.items {
		if i.timer != nil {
			i.timer.Stop()
		}
	}
}
