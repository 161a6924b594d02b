// Holds and drops blocks, some by functions that are compiled into their callers; writes its own heap profile to
// the file that each line of its input names. An argument is the rate at which it samples; with a second one nothing is
// collected.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
)

var rate = func() int {
	if len(os.Args) > 1 {
		runtime.MemProfileRate, _ = strconv.Atoi(os.Args[1])
	}
	return runtime.MemProfileRate
}()

type node struct{ words [100]int }

var (
	held  [][]byte
	nodes []*node
)

//go:noinline
func hold(n int) {
	for i := 0; i < n; i++ {
		held = append(held, make([]byte, 4096))
	}
}

func inner(size int) []byte { return make([]byte, size) }

func outer(size int) []byte { return inner(size) }

//go:noinline
func grow(n int) {
	for i := 0; i < n; i++ {
		held = append(held, outer(8000))
		nodes = append(nodes, new(node))
	}
}

func main() {
	hold(8000)
	grow(2000)
	for i := 0; i < 3000; i++ {
		held[i] = nil
	}
	if len(os.Args) < 3 {
		runtime.GC()
		runtime.GC()
	}
	// After the collection: in no profile yet.
	grow(500)
	fmt.Println("ready", rate)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		file, err := os.Create(lines.Text())
		if err == nil {
			err = pprof.Lookup("heap").WriteTo(file, 0)
			file.Close()
		}
		fmt.Println("written", err)
	}
}
