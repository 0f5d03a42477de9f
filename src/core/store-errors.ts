import { accessDeniedMessage, isAccessDenied } from './access-denial.ts';
import { errorReason } from './error-reasons.ts';
import { relayed, StowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import { quoted } from './names.ts';

/** Does not list other stores, since the caller may not be allowed to see them. */
export function unknownStore(name: string): StowageError {
  return new StowageError(`there is no store ${quoted(name)}`, {
    code: 'not-found',
    reason: 'store-unknown',
    action: 'List the stores: stowage store list. The administrator adds one with: stowage store add NAME URI',
  });
}

/**
 * For a volume that is not found because its store is not configured any more. Such a store cannot be asked, so all its volumes would look
 * deleted. `action`: how users of the caller configure the store again.
 */
export function storeGone(store: string, action: string): StowageError {
  return new StowageError(`store '${store}' is not configured any more, and the volume may still be on it`, {
    code: 'conflict',
    reason: 'volume-store-gone',
    action,
  });
}

/** For an operation that waits for its store. */
export function storeNotConfigured(name: string): StowageError {
  return new StowageError(`store ${quoted(name)} is not configured`, {
    code: 'unavailable',
    reason: 'store-not-configured',
    action: `Configure it again, or cancel the operation: stowage operations`,
  });
}

/** For a configured store a missing directory or server may be temporary; for a store that is being added it is a mistake. */
export function cannotAdd(problem: StowageError): StowageError {
  const { reason, message, cause } = problem;
  const code = errorReason(reason)?.mistakeWhenAdded === true ? 'invalid' : problem.code;
  // The store does not exist yet, so it cannot be checked.
  return relayed(message, { code, reason, action: withoutCheck(problem.action), cause });
}

/** Removes the advice to check the store, for callers who just did or cannot. */
export const withoutCheck = (action: string): string =>
  action.replace(/(?:[;.] [Tt]hen|, or look with)?: stowage store check \S+$/, '.');

export function storeClosing(name: string): StowageError {
  return new StowageError(`store '${name}' is being closed`, {
    code: 'unavailable',
    reason: 'store-closing',
    action: 'Try again in a moment.',
  });
}

export function storeOpening(name: string): StowageError {
  return new StowageError(`store '${name}' is still being opened`, {
    code: 'unavailable',
    reason: 'store-opening',
    action: `Try again in a moment. If it stays so, its disk or server does not answer: stowage store check ${name}`,
  });
}

export function storeBusy(name: string, users: number): StowageError {
  return new StowageError(`store '${name}' is busy with ${users} call${users === 1 ? '' : 's'} that did not end`, {
    code: 'busy',
    reason: 'store-busy',
    action: 'See what runs with: stowage operations. Wait for it or cancel it, then try again.',
  });
}

/** For an open store. `denial`: it answers but denies access. */
export function notAnswering(name: string, denial: StowageError | undefined): StowageError {
  if (denial !== undefined) {
    const what = accessDeniedMessage(denial, `store '${name}'`);
    return new StowageError(what, {
      code: 'unavailable',
      reason: 'store-access-denied',
      action: `Ask the administrator to grant Stowage access; the reason is found with: stowage store check ${name}`,
      cause: denial,
    });
  }
  return new StowageError(`the server of store '${name}' does not answer`, {
    code: 'unavailable',
    reason: 'store-not-answering',
    action: `Stowage uses it again as soon as it answers. To find the cause: stowage store check ${name}`,
  });
}

/** A store that could not be searched. `isOpen`: its server does not answer; otherwise it could not be opened. */
export interface UnsearchedStore {
  readonly name: string;
  readonly isOpen: boolean;
  /** Set only if the store denies access. */
  readonly denial: StowageError | undefined;
}

/** Why a search over these stores is incomplete, and what to do if access is denied. Safe to show to users. */
export function describeUnsearched(stores: readonly UnsearchedStore[]): {
  readonly summary: string;
  readonly action: string | undefined;
} {
  const silent = stores.filter(({ denial, isOpen }) => denial === undefined && isOpen);
  const closed = stores.filter(({ denial, isOpen }) => denial === undefined && !isOpen);
  const denied = stores.flatMap(({ name, denial }) => (denial === undefined ? [] : notAnswering(name, denial)));
  const describe = (some: readonly UnsearchedStore[], what: string): string[] =>
    some.length === 0 ? [] : [`store ${some.map(({ name }) => quoted(name)).join(', ')} ${what}`];
  return {
    summary: [
      ...describe(silent, 'does not answer'),
      ...describe(closed, 'cannot be used now'),
      ...denied.map(({ message }) => message),
    ].join('; '),
    action: denied[0]?.action,
  };
}

/** The failed step of a check if the disk or server does not answer at all. */
export function noAnswerStep(seconds: number): { step: string; ok: false; detail: string; action: string } {
  return {
    step: 'answer',
    ok: false,
    detail: `no answer within ${seconds} s`,
    action:
      'Look for a disk or server that does not answer (dmesg | tail); operations that wait for it continue when it is back.',
  };
}

/** Like `noAnswerStep` for a check from another place: the container engine, or finding the network, may be slow instead. */
export function slowCheckStep(from: string, seconds: number): ReturnType<typeof noAnswerStep> {
  return {
    step: 'answer',
    ok: false,
    detail: `the check from ${from} did not end within ${seconds} s`,
    action:
      'Try again when the machine is less busy. If it persists, check without --from: if that works, the store is not the cause.',
  };
}

export function storeExists({ name, origin }: StoreConfig): StowageError {
  return new StowageError(`there is a store '${name}' already`, {
    code: 'exists',
    reason: 'store-exists',
    action: `Choose another name${origin === 'api' ? `, or remove it first: stowage store remove ${name}` : '.'}`,
  });
}

export function storeBeingAdded(name: string): StowageError {
  return new StowageError(`a store '${name}' is being added already, with another URI`, {
    code: 'busy',
    reason: 'store-being-added',
    action: 'Wait until that request has ended and try again, or choose another name.',
  });
}

export function notRemovable(config: StoreConfig): StowageError {
  if (config.origin === 'cluster')
    return new StowageError(`store '${config.name}' is defined by a Store object in Kubernetes`, {
      code: 'denied',
      reason: 'store-from-cluster',
      action: `Delete the object: kubectl delete store ${config.name}`,
    });
  const inFile = config.origin === 'file';
  return new StowageError(`store '${config.name}' is ${inFile ? 'defined in stowage.yaml' : 'built in'}`, {
    code: 'denied',
    reason: 'store-from-file',
    action: inFile
      ? 'Remove it there and reload: kill -HUP the server.'
      : 'If --nfs added it, start without --nfs. Otherwise define stores in stowage.yaml: then there is no built-in store.',
  });
}

export function storeMounted(config: StoreConfig, mounted: readonly string[]): StowageError {
  return new StowageError(`store '${config.name}' has mounted volumes: ${mounted.slice(0, 5).join(', ')}`, {
    code: 'in-use',
    reason: 'store-in-use',
    action: 'Unmount them first: stowage mounts shows where they are.',
  });
}

/** Always `unavailable`, whatever the problem is: Stowage reopens the store by itself, so callers may retry. */
export function storeUnavailable({ name }: StoreConfig, problem: StowageError | undefined): StowageError {
  const isDenied = problem !== undefined && isAccessDenied(problem);
  return relayed(`store '${name}' cannot be used: ${problem?.message ?? 'it is not open yet'}`, {
    code: 'unavailable',
    reason: problem?.reason ?? 'store-not-open',
    action: problem?.action ?? 'Try again in a moment.',
    ...(isDenied ? { toUsers: { message: accessDeniedMessage(problem, `store '${name}'`) } } : {}),
    cause: problem,
  });
}

export function storeRemoved(name: string): StowageError {
  return new StowageError(`store '${name}' was removed before the operation finished`, {
    code: 'canceled',
    reason: 'store-removed',
    action: `Add the store again and repeat the request; 'stowage store adopt ${name}' finds its volumes.`,
  });
}

export function storeNotOnNetwork({ name }: StoreConfig): StowageError {
  return new StowageError(`store '${name}' is on this machine: no network leads to it`, {
    code: 'unsupported',
    reason: 'store-without-network',
    action: `Leave out --from: stowage store check ${name}`,
  });
}
