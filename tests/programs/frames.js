// Reserves 96 MiB under functions that were compiled and others that were not, and prints its own stack there.
'use strict';
const kept = [];

function hot(n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += i % 7;
  return sum;
}

function reserve() {
  kept.push(new ArrayBuffer(96 << 20));
  for (const line of new Error().stack.split('\n').slice(1)) console.log(line.trim());
}

const nested = (depth) => (depth === 0 ? reserve() : nested(depth - 1));

class Holder {
  grow() {
    [3].forEach(nested);
  }
}

let sum = 0;
for (let i = 0; i < 3000; i++) sum += hot(1000);
new Holder().grow();
console.log('end', sum, kept.length);
