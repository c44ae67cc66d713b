package engine

// A queue is a FIFO in a ring that grows to the most it ever held and then
// allocates no more.
type queue[T any] struct {
	buf  []T
	head int
	n    int
}

// push makes room at the end and returns it.
func (q *queue[T]) push() *T {
	if q.n == len(q.buf) {
		buf := make([]T, max(16, 2*len(q.buf)))
		for i := range q.n {
			buf[i] = q.buf[(q.head+i)%len(q.buf)]
		}
		q.buf, q.head = buf, 0
	}
	p := &q.buf[(q.head+q.n)&(len(q.buf)-1)]
	q.n++
	return p
}

// last is what was pushed last and is still there.
func (q *queue[T]) last() *T {
	if q.n == 0 {
		return nil
	}
	return &q.buf[(q.head+q.n-1)&(len(q.buf)-1)]
}

// first is what pop takes.
func (q *queue[T]) first() *T { return &q.buf[q.head] }

// pop takes the first. The caller copies what it needs before the next push.
func (q *queue[T]) pop() *T {
	p := &q.buf[q.head]
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return p
}
