import { fieldsOf } from './fields.ts';

export interface EngineEvent {
  /** For example `container`, `volume`, `network` or `image`. */
  readonly type: string;
  /** `create`, `start`, `die`, `destroy` (Docker) or `remove` (Podman), `exec_start: sh`, `health_status: healthy` … */
  readonly action: string;
  readonly id: string;
  readonly attributes: Readonly<Record<string, string>>;
}

export function eventOf(line: unknown, call: string): EngineEvent {
  const fields = fieldsOf(line, call);
  const actor = fields.optionalObject('Actor');
  return {
    type: fields.text('Type'),
    action: fields.text('Action'),
    id: actor.optionalText('ID'),
    attributes: actor.textMap('Attributes'),
  };
}
