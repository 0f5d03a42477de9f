import { StowageError } from './errors.ts';

/** What whoever asks for something is told at that moment, by every front end. */
export function stoppingError(): StowageError {
  return new StowageError('Stowage is stopping', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Try again when it runs.',
  });
}
