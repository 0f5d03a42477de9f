import { mkdirSync, rmdirSync } from 'node:fs';
import { checkResult, lazyBindings } from '#base/linux/libc.ts';

/** The system calls that stage and publish a directory, without records, locks and checks. */
export interface BareMounts {
  stage(source: string, own: string, staging: string): void;
  publish(own: string, target: string): void;
  /** Unmounts and removes all paths, whichever side made them. */
  takeDown(...places: readonly string[]): void;
}

const functions = lazyBindings({
  mount: 'int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)',
  umount2: 'int umount2(const char *target, int flags)',
});
const binding = 4096;
const remounting = 32;
const confined = 2 | 4;

function bind(from: string, to: string): void {
  mkdirSync(to);
  checkResult('mount', functions().mount(from, to, null, binding, null));
}

export const createBareMounts: BareMounts = {
  stage: (source, own, staging) => {
    bind(source, own);
    checkResult('mount', functions().mount(null, own, null, binding | remounting | confined, null));
    bind(own, staging);
  },
  publish: bind,
  takeDown: (...places) => {
    for (const place of places) {
      checkResult('umount', functions().umount2(place, 0));
      rmdirSync(place);
    }
  },
};
