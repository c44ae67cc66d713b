// Package fifo has the first-in-first-out queue of the loop's parts: a ring that never shrinks, so that a queue which is
// used all the time does not allocate. It has no lock: one goroutine uses a queue.
package fifo

// A Queue is a FIFO in a ring. The ring grows to the largest number of elements that the queue ever had. The zero value is
// empty.
type Queue[T any] struct {
	buf  []T // a power of two
	head int
	n    int
}

// Len returns the number of elements.
func (q *Queue[T]) Len() int { return q.n }

// Push adds an element at the end and returns it. Its value is arbitrary: the caller sets it.
func (q *Queue[T]) Push() *T {
	if q.n == len(q.buf) {
		buf := make([]T, max(16, 2*len(q.buf)))
		for i := range q.n {
			buf[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = buf, 0
	}
	p := &q.buf[(q.head+q.n)&(len(q.buf)-1)]
	q.n++
	return p
}

// First returns the element that Pop removes. The queue is not empty.
func (q *Queue[T]) First() *T { return &q.buf[q.head] }

// Last returns the element that was pushed last; nil: the queue is empty.
func (q *Queue[T]) Last() *T {
	if q.n == 0 {
		return nil
	}
	return &q.buf[(q.head+q.n-1)&(len(q.buf)-1)]
}

// Pop removes the first element. It stays in the ring until the next Push: the caller copies it before, and clears what it
// refers to if that has to be collected. The queue is not empty.
func (q *Queue[T]) Pop() *T {
	p := &q.buf[q.head]
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return p
}

// Take removes the first element, clears it in the ring and returns it. The queue is not empty.
func (q *Queue[T]) Take() T {
	var zero T
	p := q.Pop()
	v := *p
	*p = zero
	return v
}

// Remove removes the elements for which the function returns true; the others keep their order.
func (q *Queue[T]) Remove(which func(T) bool) {
	for range q.n {
		if v := q.Take(); !which(v) {
			*q.Push() = v
		}
	}
}
