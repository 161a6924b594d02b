// A library that C calls: memory for the call itself, and for a goroutine of its own.
package main

import "C"
import "sync"

const mib = 1 << 20

var kept [][]byte
var lock sync.Mutex

//go:noinline
func grow(n int) {
	lock.Lock()
	kept = append(kept, make([]byte, n))
	lock.Unlock()
}

//export Grow
func Grow(mibs C.int) {
	grow(int(mibs) * mib)
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		grow(int(mibs) * 2 * mib)
	}()
	all.Wait()
}

func main() {}
