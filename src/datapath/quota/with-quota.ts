import { unlessAborted } from '#base/aborted.ts';
import { asErrno } from '../errors.ts';
import type { RequestWait } from '../request-wait.ts';
import type { Writes } from '../writes.ts';
import type { Charges } from './charges.ts';

/** Accepts no write that exceeds the quota. */
export function withQuota(writes: Writes, charges: Charges, waitFor: RequestWait): Writes {
  return {
    ...writes,
    get revalidations() {
      return writes.revalidations;
    },
    write: (id, position, data, request) => {
      const admission = charges.write(id, position.offset, data.length, request);
      if (admission === undefined) return writes.write(id, position, data, request);
      return waitFor(request, (signal) => unlessAborted(admission, signal).catch(throwErrno))
        .then(() => writes.write(id, position, data, request))
        .catch((cause: unknown) => {
          charges.abandon(request);
          throw cause;
        });
    },
    uncommitted: {
      ...writes.uncommitted,
      get files() {
        return writes.uncommitted.files;
      },
      restore: (written) => {
        charges.restore(written.place, written.data.length);
        writes.uncommitted.restore(written);
      },
    },
  };
}

function throwErrno(cause: unknown): never {
  throw asErrno(cause);
}
