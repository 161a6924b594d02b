// Goroutines that take turns on few threads. Each maps memory through functions of its own, with sizes that no other
// has: the name of a function and the size of a mapping say whose call it is.
package main

import (
	"runtime"
	"sync"
)

const mib = 1 << 20

var kept [][]byte
var lock sync.Mutex

func keep(block []byte) {
	lock.Lock()
	kept = append(kept, block)
	lock.Unlock()
}

//go:noinline
func map0(n int) { keep(make([]byte, n)) }

//go:noinline
func map1(n int) { keep(make([]byte, n)) }

//go:noinline
func map2(n int) { keep(make([]byte, n)) }

//go:noinline
func map3(n int) { keep(make([]byte, n)) }

//go:noinline
func work0(turn int) { map0((80 + turn) * mib) }

//go:noinline
func work1(turn int) { map1((100 + turn) * mib) }

//go:noinline
func work2(turn int) { map2((120 + turn) * mib) }

//go:noinline
func work3(turn int) { map3((140 + turn) * mib) }

// Its stack is moved to a larger one, which the runtime has to map.
//
//go:noinline
func deep(depth int) byte {
	var frame [64 << 10]byte
	frame[depth] = byte(depth)
	if depth == 0 {
		return frame[0]
	}
	return deep(depth-1) + frame[depth]
}

func main() {
	runtime.GOMAXPROCS(2)
	var all sync.WaitGroup
	for _, work := range []func(int){work0, work1, work2, work3} {
		work := work
		all.Add(1)
		go func() {
			defer all.Done()
			for turn := 0; turn < 8; turn++ {
				work(turn)
				runtime.Gosched()
			}
		}()
	}
	all.Wait()
	all.Add(1)
	go func() {
		defer all.Done()
		deep(1000)
	}()
	all.Wait()
}
