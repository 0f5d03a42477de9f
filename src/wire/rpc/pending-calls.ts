import type { Call } from './transport.ts';

/**
 * Calls by xid. Not a Map: with constant inserts and deletes, V8 allocates a new table every few calls, and each old table points
 * to the next. Once the young-generation garbage collector has kept one table, it keeps all later tables, and all calls in
 * them.
 */
export interface PendingCalls {
  readonly size: number;
  get(xid: number): Call | undefined;
  add(call: Call): void;
  /** Returns false if the call was not pending. */
  delete(call: Call): boolean;
  /** A snapshot, sorted by xid. */
  values(): readonly Call[];
}

const initialBuckets = 64;

export function createPendingCalls(): PendingCalls {
  /** Each bucket is a linked list of calls whose xids share their low bits. */
  let buckets = createBuckets(initialBuckets);
  let size = 0;

  function insert(call: Call): void {
    const bucketIndex = call.xid & (buckets.length - 1);
    call.next = buckets[bucketIndex];
    buckets[bucketIndex] = call;
  }

  function values(): readonly Call[] {
    const all: Call[] = [];
    for (const first of buckets) for (let call = first; call !== undefined; call = call.next) all.push(call);
    return all.sort((a, b) => a.xid - b.xid);
  }

  return {
    get size() {
      return size;
    },
    values,
    get: (xid) => {
      let call = buckets[xid & (buckets.length - 1)];
      while (call !== undefined && call.xid !== xid) call = call.next;
      return call;
    },
    add: (call) => {
      if (size >= buckets.length) {
        const all = values();
        buckets = createBuckets(buckets.length * 2);
        for (const one of all) insert(one);
      }
      insert(call);
      size++;
    },
    delete: (call) => {
      const bucketIndex = call.xid & (buckets.length - 1);
      let previous: Call | undefined;
      let current = buckets[bucketIndex];
      while (current !== undefined && current !== call) [previous, current] = [current, current.next];
      if (current === undefined) return false;
      if (previous === undefined) buckets[bucketIndex] = call.next;
      else previous.next = call.next;
      call.next = undefined;
      size--;
      return true;
    },
  };
}

const createBuckets = (length: number): (Call | undefined)[] => new Array<Call | undefined>(length).fill(undefined);
