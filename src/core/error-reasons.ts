import { engineReasons } from './error-reasons/engines.ts';
import { kubernetesReasons } from './error-reasons/kubernetes.ts';
import { mountReasons } from './error-reasons/mounts.ts';
import { nfsReasons } from './error-reasons/nfs.ts';
import { programReasons } from './error-reasons/program.ts';
import type { ErrorReason } from './error-reasons/reason.ts';
import { requestReasons } from './error-reasons/requests.ts';
import { storeReasons } from './error-reasons/stores.ts';
import { volumeReasons } from './error-reasons/volumes.ts';

/** Every reason that this version gives: its code, who may read the message, and when it occurs. */
export const errorReasons = {
  ...requestReasons,
  ...storeReasons,
  ...nfsReasons,
  ...volumeReasons,
  ...mountReasons,
  ...engineReasons,
  ...kubernetesReasons,
  ...programReasons,
} as const satisfies Record<string, ErrorReason>;

export type Reason = keyof typeof errorReasons;

/** Undefined: another version gave the reason, or another program did. */
export function errorReason(reason: string): ErrorReason | undefined {
  return Object.hasOwn(errorReasons, reason) ? errorReasons[reason as Reason] : undefined;
}
