import { administrators, everybody } from './reason.ts';

/** Container engines, and the plugin that they call. */
export const engineReasons = {
  'container-networks-several': administrators('conflict', 'The container is stopped and has several networks.'),
  'container-not-running': administrators('conflict', 'The container is stopped, so it has no network.'),
  'container-without-network': administrators('conflict', 'The container has no network of its own.'),
  'engine-answer': administrators('unavailable', 'The container engine gave an unexpected answer.'),
  'engine-denied': administrators('denied', 'Stowage may not use the socket of the container engine.'),
  'engine-network-hidden': administrators(
    'unsupported',
    'The network of the container is not visible from where Stowage runs.',
  ),
  'engine-network-missing': administrators('unavailable', 'The container engine has no such network.'),
  'engine-place-unknown': administrators('not-found', 'No container or network has this name.'),
  'engine-refused': administrators(['denied', 'unavailable'], 'The container engine rejected the request.'),
  'engine-remaps-users': everybody(
    'unsupported',
    'The container engine remaps users, and the store cannot serve such volumes.',
  ),
  'engine-unknown': administrators('unsupported', 'The container engine is not configured.'),
  'engine-unreachable': administrators(['deadline', 'unavailable'], 'The container engine does not answer.'),
  'plugin-block-volume': everybody('unsupported', 'Container engines cannot use raw block volumes.'),
  'plugin-option-invalid': everybody('invalid', 'An option of the volume has a wrong value.'),
  'plugin-option-of-administrator': everybody(
    'denied',
    'The option belongs to the store; only the administrator sets it.',
  ),
  'plugin-option-unknown': everybody('invalid', 'The plugin has no such option.'),
  'plugin-other-scope': everybody(['invalid', 'not-found'], 'The volume or the store belongs to the other plugin.'),
  'plugin-overloaded': everybody('busy', 'The engine has too many calls in progress.'),
  'plugin-request-invalid': everybody('invalid', 'The call of the engine is malformed.'),
  'plugin-store-contradiction': everybody(
    'invalid',
    'The name of the volume and the option store name different stores.',
  ),
  'plugin-store-unnamed': everybody('invalid', 'The call names no store, and the plugin has no default store.'),
  'plugin-volume-differs': everybody('exists', 'A volume of this name exists with other properties.'),
  'plugin-without-store': everybody('not-found', 'No configured store can be used by this plugin.'),
} as const;
