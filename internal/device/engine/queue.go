package engine

// A queue is a FIFO in a ring. The ring grows to the largest number of elements that it ever held,
// and does not shrink.
type queue[T any] struct {
	buf  []T
	head int
	n    int
}

// push adds an element at the end and returns it.
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

// last is the element that was pushed last; nil: the queue is empty.
func (q *queue[T]) last() *T {
	if q.n == 0 {
		return nil
	}
	return &q.buf[(q.head+q.n-1)&(len(q.buf)-1)]
}

// first is the element that pop takes.
func (q *queue[T]) first() *T { return &q.buf[q.head] }

// pop takes the first element. The caller copies it before the next push.
func (q *queue[T]) pop() *T {
	p := &q.buf[q.head]
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return p
}
