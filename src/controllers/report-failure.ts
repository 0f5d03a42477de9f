import { KubeError } from '#wire/kube/errors.ts';
import type { ObjectReference } from '#wire/kube/types.ts';
import { errorNote } from './machinery/error-note.ts';
import type { Events } from './machinery/events.ts';
import { failureOf } from './machinery/outcome.ts';

const neverAborted = new AbortController().signal;
const adminHint = 'by: kubectl get stores, and the log of the controller';

/** Reports a failure as a Warning Event on the object. Errors of the API server that a retry may solve are not reported. */
export function reportFailure(
  events: Events,
  regarding: ObjectReference,
  { reason, action }: { readonly reason: string; readonly action: string },
  error: unknown,
): void {
  if (error instanceof KubeError && failureOf(error, neverAborted).kind === 'retry') return;
  events.report({ regarding, type: 'Warning', reason, action, note: errorNote(error, adminHint) });
}
